FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap busybox-static chromium-headless-shell fonts-dejavu-core \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY src src
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

RUN useradd --create-home --uid 10001 toolgate && install -d -o toolgate -m 0700 /data
USER toolgate
ENV TOOLGATE_HOME=/data HOST=0.0.0.0 LOG_FORMAT=json
VOLUME /data
EXPOSE 8090 8787
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8787/health', timeout=2)"]
ENTRYPOINT ["toolgate"]
CMD ["up"]
