#!/usr/bin/env bash
# Ask every line of a text file, overnight:  examples/batch.sh HOST:PORT questions.txt answers.jsonl [PREFIX]
# Run it again after a crash: what was asked is not asked again.
set -euo pipefail
brokers=$1 questions=$2 answers=$3 prefix=${4:-inference}
kafka=(--bootstrap-servers "$brokers" --topic-prefix "$prefix")

{ echo question; sed 's/"/""/g; s/.*/"&"/' "$questions"; } > "$answers.csv"
headrace submit "$answers.csv" "${kafka[@]}" --tenant examples --prompt-template "{question}" --max-tokens 64 \
    --wait --output "$answers" --errors "$answers.errors" --in-order
