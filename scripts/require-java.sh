#!/usr/bin/env bash
# Say in one sentence what is missing for the local Apache Kafka, and how to get it.
set -euo pipefail
if [ -n "${HEADRACE_KAFKA__BOOTSTRAP_SERVERS:-}" ]; then exit 0; fi
major=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || true
if [ -z "${major:-}" ] || [ "$major" -lt 17 ]; then
    echo "The local Kafka needs Java 17 or newer (found: ${major:-none}): install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17), or use 'docker compose up', or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to a broker of your own." >&2
    exit 2
fi
if ! command -v mvn >/dev/null && [ ! -d "${HEADRACE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace}/kafka" ]; then
    echo "The local Kafka is fetched with Maven, which is not on the PATH: install it (Debian: apt-get install maven; macOS: brew install maven), or use 'docker compose up'." >&2
    exit 2
fi
