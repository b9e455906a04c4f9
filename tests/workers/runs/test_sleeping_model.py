"""The model that sleeps, of the chaos tests, has all that a worker asks of a loaded one."""

from dataclasses import fields

from tests.chaos.sleeping_runner import sleeping_model
from workers.models.loaded_model import LoadedModel


def test_it_has_the_fields_of_a_loaded_model() -> None:
    assert [field.name for field in fields(sleeping_model())] == [field.name for field in fields(LoadedModel)]
