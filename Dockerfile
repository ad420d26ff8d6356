# The CUDA base without libraries: the wheels of the lock bring CUDA with them, and only the driver's are mounted by `--gpus all`.
ARG BASE_DIGEST=sha256:2ab6381d970b211fb93853796dc6707eb8a72575a375c422b17cf4d8b2641701
ARG BASE_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04@${BASE_DIGEST}

# what a training needs of the system: its versions are those of the base's distribution
FROM ${BASE_IMAGE} AS system
# git: the commit in MLflow, `dvc exp`.  g++: Triton builds its launcher and the compiler its CPU kernels with it (train.compile).  tini: signals
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ git python3 tini \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/debconf/*-old \
    && mkdir --mode=1777 /home/pipeline

FROM system AS dependencies
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY requirements.lock /
# setuptools first: what has no wheel is built with the lock's own, and with nothing from outside the lock. Then out goes what no training loads:
# archives for linking, tests, Triton's AMD half and its own profiler, NVSHMEM for kernels of one's own, the solver for several GPUs, and the
# installer itself (docs/container.md has the sizes)
# hadolint ignore=DL3003
RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv /opt/venv \
    && sed -n '/^setuptools==/,/# via/p' /requirements.lock > /setuptools.lock \
    && for lock in /setuptools.lock /requirements.lock; do \
         /opt/venv/bin/pip install --disable-pip-version-check --no-build-isolation --no-compile --no-deps --require-hashes --requirement "$lock" || exit 1; done \
    && find /opt/venv -name '*.a' -delete \
    && find /opt/venv -name tests -type d -prune -exec rm -r {} + \
    && cd /opt/venv/lib/python3*/site-packages \
    && rm -r triton/backends/amd/lib triton/backends/nvidia/lib/cupti* nvidia/nvshmem/lib/*.bc nvidia/cu13/lib/libcusolverMg.so.* pip* /opt/venv/bin/pip* \
    && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x torch/testing/_internal /opt/venv/lib \
    && mkdir /headers && cp --parents --recursive /usr/include/python3* /usr/include/*/python3* /headers

FROM system AS code
ARG SOURCE_DATE_EPOCH=0
COPY . /layer/opt/pipeline
RUN find /layer/opt/pipeline/pipeline -type f ! -name '*.py' -delete \
    && python3 -m compileall -q --invalidation-mode unchecked-hash -s /layer /layer/opt/pipeline \
    && chmod -R u=rwX,go=rX /layer \
    && find /layer -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

FROM system
COPY --from=dependencies /opt/venv /opt/venv
# Python's headers, for what train.compile builds
COPY --from=dependencies /headers/ /
COPY --from=code /layer/ /
ENV PATH=/opt/venv/bin:$PATH \
    DO_NOT_TRACK=1 \
    DVC_NO_ANALYTICS=1 \
    MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false \
    PYTHONUNBUFFERED=1 \
    TORCH_FORCE_WEIGHTS_ONLY_LOAD=1
WORKDIR /opt/pipeline
USER 1000:1000
ENTRYPOINT ["tini", "-g", "--", "env", "PYTHONPATH=/opt/pipeline", "python", "-P", "-m", "pipeline.container"]

# what changes with each commit stands last
ARG BASE_IMAGE
ARG BASE_DIGEST
ARG REVISION=unknown
ARG VERSION=unknown
ENV PIPELINE_IMAGE_REVISION=${REVISION}
LABEL org.opencontainers.image.title="pipeline" \
      org.opencontainers.image.description="A reproducible training pipeline: DVC stages, typed parameters, MLflow tracking" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
