"""A whole workload, all its requests at once: token for token what transformers' generate says. `make tokens`.

make tokens WORKLOAD=FILE        a JSON {requests: [{prompt_token_ids, max_tokens}]}, as `bench engine` takes it
"""

import json
import os
from pathlib import Path

import pytest

from benchmarks.transformers_peer import PeerRequest, TransformersPeer
from tests.integration.models.completion_loop import complete
from tests.integration.models.conftest import PLACEMENT
from workers.model_source import ModelFiles
from workers.paged_runner import PagedRunner

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif("WORKLOAD" not in os.environ, reason="minutes: `make tokens WORKLOAD=FILE`"),
    pytest.mark.timeout(3600),
]


def test_every_request_of_the_workload_gets_the_tokens_of_generate(
    smollm2_files: ModelFiles, smollm2_runner: PagedRunner
) -> None:
    requests = json.loads(Path(os.environ["WORKLOAD"]).read_bytes())["requests"]
    asked = [PeerRequest(request["prompt_token_ids"], request["max_tokens"]) for request in requests]
    longest = max(request.output_tokens for request in asked)

    def cut(left: list[int]) -> list[int]:
        """Decodes first, then pieces of prompts up to 512 tokens a step: as serving does."""
        budget = 512 - sum(1 for tokens in left if tokens == 1)
        takes = []
        for tokens in left:
            take = 1 if tokens == 1 else min(tokens, budget)
            budget -= 0 if tokens == 1 else take
            takes.append(take)
        return takes

    got = complete(smollm2_runner, [request.prompt_token_ids for request in asked], longest, cut=cut)
    _figures, want = TransformersPeer(smollm2_files.folder, PLACEMENT).run(asked)
    wrong = [
        number for number, (mine, theirs) in enumerate(zip(got, want, strict=True)) if mine[: len(theirs)] != theirs
    ]
    assert wrong == [], f"{len(wrong)} of {len(asked)} requests differ"
    print(f"{len(asked)} of {len(asked)} requests, {sum(map(len, want))} tokens")
