"""Names of jobs and rows."""

import pytest

from topics.jobs.row_ids import JobIdError, RowId, check_job_id, derived_job_id, reply_partition_of
from topics.jobs.row_set import RowSet


def test_a_request_id_says_which_row_it_is() -> None:
    assert RowId.parse(str(RowId("nightly-1", 2, 49_999))) == RowId("nightly-1", 2, 49_999)


@pytest.mark.parametrize("text", ["", "abc", "a~0~1", "a~1~01", "a~1", "~1~1", "a~1~1~1", "a~1~x", "a b~1~1"])
def test_other_request_ids_are_no_rows(text: str) -> None:
    assert RowId.parse(text) is None


@pytest.mark.parametrize("job_id", ["", "a~b", "-a", "a b", "x" * 65])
def test_a_job_id_that_could_not_stand_in_a_request_id_is_refused(job_id: str) -> None:
    with pytest.raises(JobIdError, match="job id"):
        check_job_id(job_id)


def test_the_same_input_for_the_same_class_and_tenant_is_the_same_job() -> None:
    one = derived_job_id("f", "p3", "acme")
    assert one == derived_job_id("f", "p3", "acme") == check_job_id(one)
    assert (
        len(
            {one, derived_job_id("g", "p3", "acme"), derived_job_id("f", "p2", "acme"), derived_job_id("f", "p3", None)}
        )
        == 4
    )


def test_jobs_spread_over_the_reply_partitions() -> None:
    assert {reply_partition_of(f"job-{number}", 8) for number in range(200)} == set(range(8))


def test_a_row_set_survives_its_encoding() -> None:
    rows = RowSet(50_000, range(0, 50_000, 3))
    again = RowSet.decode(50_000, rows.encode())
    assert list(again) == list(rows) == list(range(0, 50_000, 3))
    assert len(again) == len(rows)
    assert 50_001 not in again


def test_a_row_set_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="2 bytes"):
        RowSet.decode(16, RowSet(4_000).encode())
