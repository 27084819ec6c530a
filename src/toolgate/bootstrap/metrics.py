"""Numbers for Prometheus, read from the parts that have them when someone asks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Reading:
    """One number: what it means, how to get it, whether it only ever grows."""

    meaning: str
    read: Callable[[], float]
    grows: bool = False


class _Readings(Collector):
    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def _families(self) -> Iterator[Metric]:
        for name, reading in self._readings.items():
            family = CounterMetricFamily if reading.grows else GaugeMetricFamily
            yield family(f"toolgate_{name}", reading.meaning, value=reading.read())


class Metrics:
    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Readings(readings))

    def text(self) -> bytes:
        return generate_latest(self._registry)
