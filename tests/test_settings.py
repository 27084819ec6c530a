"""The settings table: sources, checks, secrets."""

from pathlib import Path

import pytest

from toolgate import settings
from toolgate.core.errors import Misconfigured
from toolgate.settings import Secret, Settings, load, table


def test_the_environment_comes_before_the_file_and_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    config = tmp_path / "toolgate.toml"
    config.write_text('WS_PORT = 1111\nHTTP_PORT = 2222\nLOG_LEVEL = "debug"\n')
    loaded = load({}, environment={"WS_PORT": "3333"}, config=config)
    assert (loaded.ws_port, loaded.http_port, loaded.log_level) == (3333, 2222, "debug")
    assert loaded.gateway_port == 8787


def test_the_command_line_comes_before_everything() -> None:
    assert load({"WS_PORT": "1"}, environment={"WS_PORT": "2"}).ws_port == 1


@pytest.mark.requirement(
    "001/settings/ws-port",
    "001/settings/http-port",
    "001/settings/orchestrator-url",
    "001/settings/ping-interval",
    "001/settings/pong-wait",
    "001/settings/write-wait",
    "001/settings/api-key",
    "001/settings/log-level",
    "001/settings/loopback",
    "001/offline/window-default",
    "001/orchestrator/default-port",
)
def test_the_defaults_are_the_contract_s() -> None:
    defaults = {entry.name: entry.default for entry in table()}
    assert (
        defaults
        | {
            "WS_PORT": "8090",
            "HTTP_PORT": "8091",
            "ORCHESTRATOR_URL": "",
            "WS_PING_INTERVAL_MS": "30000",
            "WS_PONG_WAIT_MS": "60000",
            "WS_WRITE_WAIT_MS": "10000",
            "API_KEY": "",
            "LOG_LEVEL": "info",
            "HOST": "127.0.0.1",
            "RESUME_WINDOW_MS": "30000",
            "ON_DISCONNECT": "cancel",
            "WS_MAX_MESSAGE_BYTES": "65536",
            "GATEWAY_PORT": "8787",
            "ORCHESTRATOR_PORT": "8081",
            "RUNNER_PORT": "18081",
        }
        == defaults
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WS_PORT", "x"),
        ("WS_PORT", "-1"),
        ("WS_PORT", "65536"),
        ("WS_PORT", "1.5"),
        ("LOG_LEVEL", "loud"),
        ("ORCHESTRATOR_URL", "example.org"),
        ("ORCHESTRATOR_URL", "http://127.0.0.1:99999"),
        ("INGRESS_URL", "http://:8091"),
        ("DATABASE_URL", "mysql://x"),
        ("ON_DISCONNECT", "maybe"),
        ("RESUME_WINDOW_MS", "-5"),
        ("HEARTBEAT", "61 * * * *"),
        ("HEARTBEAT", "0 0 31 2 *"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=name):
        load({}, environment={name: text})


def test_an_unknown_name_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("NOPE = 1")
    with pytest.raises(Misconfigured, match="NOPE"):
        load({}, environment={}, config=config)
    with pytest.raises(Misconfigured, match="NOPE"):
        load({"NOPE": "1"}, environment={})
    with pytest.raises(Misconfigured, match="TOOLGATE_NOPE"):
        load({}, environment={"TOOLGATE_NOPE": "1"})


def test_a_named_config_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        load({}, environment={}, config=tmp_path / "missing.toml")


def test_a_secret_does_not_show_itself() -> None:
    loaded = load({}, environment={"API_KEY": "sk-very-secret"})
    assert "sk-very-secret" not in repr(loaded)
    assert "sk-very-secret" not in f"{loaded.api_key}"
    assert loaded.api_key.reveal() == "sk-very-secret"
    assert loaded.secrets() == {"sk-very-secret": "API_KEY"}
    assert "sk-very-secret" not in str(list(table()))


def test_settings_are_the_same_as_their_defaults_when_nothing_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({}, environment={}) == Settings()
    assert Secret() == Settings().api_key
    assert settings.CONFIG_FILE == "toolgate.toml"


@pytest.mark.parametrize("name", ["HOST", "TOOLGATE_HOME"])
def test_an_empty_address_or_home_is_refused_and_does_not_mean_everywhere_or_here(
    name: str,
) -> None:
    with pytest.raises(Misconfigured, match=f"{name} .* must not be empty"):
        load(environment={name: ""})


def test_a_home_in_ones_home_is_there_and_not_in_a_directory_that_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "toolgate.toml"
    config.write_text('TOOLGATE_HOME = "~/data"')
    assert load({}, environment={}, config=config).home == tmp_path / "data"
    assert load({"TOOLGATE_HOME": "~/data"}, environment={}).home == tmp_path / "data"
    with pytest.raises(Misconfigured, match=r"TOOLGATE_HOME .* ~"):
        load(environment={"TOOLGATE_HOME": "~nobody-of-that-name/data"})


@pytest.mark.parametrize("name", ["gateway_port", "GATWAY_PORT"])
def test_a_name_that_is_nearly_one_is_told_which(tmp_path: Path, name: str) -> None:
    config = tmp_path / "toolgate.toml"
    config.write_text(f"{name} = 1\n")
    with pytest.raises(Misconfigured, match="did you mean GATEWAY_PORT"):
        load({}, environment={}, config=config)
