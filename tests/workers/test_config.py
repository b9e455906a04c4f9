"""The configuration: precedence, and messages that name field, value and remedy."""

import os
from pathlib import Path

import pytest

from workers.config import ConfigError, load_config


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)


def test_the_environment_wins_over_the_file_and_flags_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text("engine: {max_sequences: 7, step_tokens: 100, threads: 1}\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_ENGINE__STEP_TOKENS", "200")
    config = load_config({"engine": {"threads": 3}})
    assert (config.engine.max_sequences, config.engine.step_tokens, config.engine.threads) == (7, 200, 3)


def test_lists_and_mappings_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CLASSES", "p0, p2")
    monkeypatch.setenv("HEADRACE_SCHEDULING__TENANT_WEIGHTS", "acme=2,globex=1.5")
    config = load_config()
    assert config.classes == ("p0", "p2")
    assert config.scheduling.tenant_weights == {"acme": 2.0, "globex": 1.5}


def test_an_unknown_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_seqs: no such setting"):
        load_config({"engine": {"max_seqs": 3}})
    monkeypatch.setenv("HEADRACE_ENGINES__THREADS", "3")
    with pytest.raises(ConfigError, match="HEADRACE_ENGINES__THREADS: no such setting"):
        load_config()


def test_a_bad_value_is_named() -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_sequences = 0"):
        load_config({"engine": {"max_sequences": 0}})


def test_a_step_too_small_for_its_sequences_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"step_tokens = 8 is less than engine\.max_sequences = 64"):
        load_config({"engine": {"step_tokens": 8}})


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="'p9' is not one of"):
        load_config({"classes": "p0,p9"})


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CONFIG", "/no/such/file.yaml")
    with pytest.raises(ConfigError, match=r"'/no/such/file\.yaml' does not exist"):
        load_config()


def test_a_password_is_never_printed() -> None:
    config = load_config({"kafka": {"sasl_password": "hunter2"}})
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(config.model_dump(mode="json"))


def test_a_refused_password_is_not_printed() -> None:
    with pytest.raises(ConfigError, match=r"sasl_password = \(not shown\)"):
        load_config({"kafka": {"sasl_password": ["hunter2"]}})


def test_variables_that_kubernetes_sets_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_SERVICE_HOST", "HEADRACE_SERVICE_PORT_HTTP", "HEADRACE_PORT", "HEADRACE_PORT_80_TCP_ADDR"):
        monkeypatch.setenv(name, "10.0.0.1")
    assert load_config().classes
