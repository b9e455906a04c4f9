#!/usr/bin/env bash
# Say in one sentence what is missing for the local Apache Kafka, and how to get it, before minutes are spent on
# anything else. The same questions in the same order as topics/kafka_distribution.py. Runs on bash 3.2 as well.
set -euo pipefail
if [ -n "${HEADRACE_KAFKA__BOOTSTRAP_SERVERS:-}" ]; then exit 0; fi

java=java
if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ]; then java=$JAVA_HOME/bin/java; fi
# 'openjdk version "17.0.15" …'; up to Java 8 it read "1.8.0".
major=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1) || true
if [ -z "$major" ] || [ "$major" -lt 17 ]; then
    echo "The local Kafka needs Java 17 or newer (found: ${major:-none}): install it (Debian: apt-get install default-jre-headless; macOS: brew install openjdk@17), or use 'docker compose up', or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to a broker of your own." >&2
    exit 2
fi

fetched=${HEADRACE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace}/kafka
if ! command -v mvn >/dev/null && ! ls -d "$fetched"/[0-9]* >/dev/null 2>&1; then
    echo "The local Kafka is fetched with Maven, which is not on the PATH: install it (Debian: apt-get install maven; macOS: brew install maven), or use 'docker compose up', or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to a broker of your own." >&2
    exit 2
fi
