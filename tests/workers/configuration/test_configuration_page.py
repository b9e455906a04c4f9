"""The reference of the configuration: current, and with a meaning for each setting."""

import re
from pathlib import Path

from workers.configuration.page import configuration_page

PAGE = configuration_page()


def test_the_page_is_what_the_models_say() -> None:
    remedy = "run `python -m workers.configuration.page > docs/configuration.md`"
    assert (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8") == PAGE, remedy


def test_each_setting_has_a_meaning() -> None:
    rows = re.findall(r"^\| `(.+?)` \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 80
    assert [name for name, _, meaning in rows if not meaning.strip()] == []
