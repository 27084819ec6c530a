FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
COPY src src
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm

# The base image's Debian decides the versions: pinning them here would break with its next update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bash-static bubblewrap busybox-static chromium-headless-shell curl fonts-dejavu-core libatomic1 \
    && rm -rf /var/lib/apt/lists/*

COPY requirements-image.lock /wheels/
RUN pip install --no-cache-dir --no-deps --require-hashes -r /wheels/requirements-image.lock
COPY --from=build /wheels/*.whl /wheels/
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

RUN useradd --create-home --uid 10001 toolgate && install -d -o toolgate -m 0700 /data /state
USER 10001
ENV TOOLGATE_HOME=/data STATE_DIR=/state HOST=0.0.0.0 LOG_FORMAT=json
VOLUME /data
# Apart from the data: it says how far they had come, so that it must not be restored with them.
VOLUME /state
EXPOSE 8081 8090 8091 8787
ENTRYPOINT ["toolgate"]
CMD ["up"]
