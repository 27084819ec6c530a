"""Runs begun as tasks: checked as the call itself would be."""

from pathlib import Path
from typing import Any

import pytest

from tests.tasks.runtimes import LOCAL, a_toolset, instant
from toolgate.core.enums import TaskCode
from toolgate.surfaces.mcp.task_answers import TaskAnswers
from toolgate.tasks.state import TaskFailed


@pytest.mark.parametrize("options", ['{"idempotencyKey": "once"}', ["async"], 7])
async def test_options_that_are_none_are_refused_and_not_ignored(
    tmp_path: Path, options: object
) -> None:
    async with a_toolset(tmp_path, instant()) as toolset:
        answers = TaskAnswers(toolset, asker=lambda _: LOCAL.asker, result=lambda told, _: told)
        nobody: Any = None
        with pytest.raises(TaskFailed) as refused:
            await answers.begin(nobody, {"templateId": "instant", "options": options})
        assert refused.value.code is TaskCode.INVALID_PARAMETER
        assert toolset.runtime.listed() == []
        run = await answers.begin(nobody, {"templateId": "instant"})
        assert toolset.runtime.listed()[0].run_id == run.run_id
