"""The templates there are: one module each under `templates/`, found by being there."""

import importlib
import pkgutil
from collections.abc import Mapping

from toolgate.tasks import templates
from toolgate.tasks.template import Template


def load_templates() -> Mapping[str, Template]:
    """Every template by its id, in the order of their names."""
    found: dict[str, Template] = {}
    for module in pkgutil.iter_modules(templates.__path__):
        template = importlib.import_module(f"{templates.__name__}.{module.name}").TEMPLATE
        assert isinstance(template, Template)
        assert template.id == module.name, "a template's file bears its id"
        found[template.id] = template
    return found
