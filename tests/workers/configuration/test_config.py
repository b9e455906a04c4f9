"""The configuration: precedence, and messages that name field, value and remedy."""

import os
from pathlib import Path

import pytest

from scheduling.policies import POLICIES
from workers.configuration.config import ConfigError, load_config


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


@pytest.mark.parametrize("weights", ["acme:2", "acme", "acme=2,", "acme=2,,globex=1", "=2", "acme="])
def test_weights_that_are_not_pairs_are_refused_with_the_right_form(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SCHEDULING__TENANT_WEIGHTS", weights)
    with pytest.raises(ConfigError, match=r"scheduling\.tenant_weights = .*write acme=2,globex=1"):
        load_config()


def test_a_tenant_with_two_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="'acme' is named twice"):
        load_config({"scheduling": {"tenant_weights": "acme=1,acme=2"}})


@pytest.mark.parametrize("weight", ["x", "0", "inf", "nan"])
def test_a_weight_that_is_no_number_above_0_is_refused(weight: str) -> None:
    with pytest.raises(ConfigError, match=r"scheduling\.tenant_weights\.acme = "):
        load_config({"scheduling": {"tenant_weights": f"acme={weight}"}})


def test_an_empty_text_is_an_empty_list_or_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MODEL__SERVED_NAMES", "")
    monkeypatch.setenv("HEADRACE_SCHEDULING__TENANT_WEIGHTS", "")
    config = load_config()
    assert (config.model.served_names, config.scheduling.tenant_weights) == ((), {})


@pytest.mark.parametrize("classes", ["p0,", ",p0", "p0,,p1"])
def test_an_empty_entry_of_a_list_is_refused(classes: str) -> None:
    with pytest.raises(ConfigError, match=r"classes = .*an entry between the commas is empty"):
        load_config({"classes": classes})


def test_an_unknown_policy_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"scheduling\.policy = 'nonsense': .*htb, fifo, strict"):
        load_config({"scheduling": {"policy": "nonsense"}})


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_named(policy: str) -> None:
    assert load_config({"scheduling": {"policy": policy}}).scheduling.policy == policy


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"- engine\n- kafka\n", "holds a list, not sections"),
        (b"engine\n", "holds a str, not sections"),
        (b"1: {}\n", "1 is not the name of a section"),
        ("model: {source: Müller}".encode("latin-1"), "is not UTF-8"),
        (b"engine: {", "is not valid YAML"),
        (b"engine: \x00", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    content: bytes, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_bytes(content)
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    with pytest.raises(ConfigError, match=rf"headrace\.yaml' ?.*{complaint}"):
        load_config()


def test_a_folder_is_no_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CONFIG", str(tmp_path))
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_config()


def test_a_file_of_comments_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headrace.yaml").write_text("# later\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(tmp_path / "headrace.yaml"))
    assert load_config().classes


@pytest.mark.parametrize(
    ("kv", "message"),
    [
        (
            {"reserve": {"p1": 0.6, "p2": 0.5}},
            r"KV blocks are .*0\.6 \(p1\) \+ 0\.5 \(p2\) .* = 1\.1, more than the whole",
        ),
        ({"slot_reserve": {"p0": 0.7, "p2": 0.4}}, r"sequence slots are .* = 1\.1, more than the whole"),
        ({"ceiling": {"p0": 0.1}}, r"p0's ceiling of KV blocks = 0\.1 is below its reserve = 0\.15"),
        ({"reserve": {"p7": 0.1}}, r"kv\.reserve: p7 is not one of p0, p1, p2, p3"),
    ],
)
def test_partitions_that_cannot_all_hold_are_refused_with_the_sum(kv: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"kv": kv})


def test_partitions_may_be_written_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KV__RESERVE", "p0=0.1,p1=0.2")
    assert load_config().kv.reserve == {"p0": 0.1, "p1": 0.2}


def test_a_mode_of_preemption_that_is_none_of_them_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"preemption\.mode = 'gently'"):
        load_config({"preemption": {"mode": "gently"}})
