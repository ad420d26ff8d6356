# The CUDA base without CUDA libraries: the wheels of the lock contain them, and `--gpus all` mounts those of the driver.
ARG BASE_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:2ab6381d970b211fb93853796dc6707eb8a72575a375c422b17cf4d8b2641701

# system packages, in the versions of the base's distribution
FROM ${BASE_IMAGE} AS system
# git: the commit in MLflow, `dvc exp`.  g++: with train.compile, Triton builds its launcher and torch's compiler CPU kernels.  tini: signals.
# No program gets the rights of another user (su, mount, passwd): no job needs it.
# Docker creates missing parent folders of a mount as root, so the usual mount points exist already, writable for any user.
# hadolint ignore=DL3003,DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ git python3 tini \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/debconf/*-old \
    && find / -xdev -type f -perm /6000 -exec chmod ug-s {} + \
    && cd /home && mkdir --mode=1777 pipeline pipeline/.dvc pipeline/.dvc/cache pipeline/data pipeline/data/raw pipeline/data/weights pipeline/models

FROM system AS dependencies
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY requirements.lock locks/hub.lock /
# a package index beside the usual one, for a lock that `make lock PACKAGE_INDEX=` has written; its packages are checked by their hashes, too
ARG PACKAGE_INDEX
# not empty: with timm, transformers and peft, for pretrained models
ARG HUB
# setuptools first, in the lock's version: it builds packages that have no wheel, so nothing comes from outside the lock.
# Then remove files that no training loads: static libraries, tests, Triton's AMD backend and profiler, NVSHMEM's bitcode for custom kernels,
# the solver for several GPUs, CUPTI's hardware counters (torch.profiler uses only its activities) and the protocol-buffer compiler
# (docs/container.md has the sizes).
# hadolint ignore=DL3003
RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv /installer && python3 -m venv --without-pip /opt/venv \
    && sed -n '/^setuptools==/,/# via/p' /requirements.lock > /setuptools.lock \
    && for lock in /setuptools.lock /requirements.lock ${HUB:+/hub.lock}; do \
         /installer/bin/pip --python /opt/venv/bin/python install --disable-pip-version-check --no-build-isolation --no-compile --no-deps --require-hashes ${PACKAGE_INDEX:+--extra-index-url "$PACKAGE_INDEX"} --requirement "$lock" || exit 1; done \
    && find /opt/venv -name '*.a' -delete \
    && cd /opt/venv/lib/python3*/site-packages \
    && find matplotlib networkx numpy pandas pyarrow scipy sklearn sympy -name tests -type d -prune -exec rm -r {} + \
    && rm -r triton/backends/amd/lib triton/backends/nvidia/lib/cupti* torch/bin/protoc* \
    && find nvidia \( -name '*.bc' -path '*/nvshmem/*' -o -name 'libcusolverMg.so.*' -o -name 'libnvperf_*.so' -o -name libcheckpoint.so -o -name libpcsamplingutil.so \) -delete \
    && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x torch/testing/_internal /opt/venv/lib \
    && mkdir /headers && cp --parents --recursive /usr/include/python3* /usr/include/*/python3* /headers

FROM system AS code
ARG SOURCE_DATE_EPOCH=0
COPY . /layer/opt/pipeline
# the digests of all files distinguish the image's own code from code that is mounted over it
# hadolint ignore=DL3003
RUN find /layer/opt/pipeline/pipeline -type f ! -name '*.py' -delete \
    && cd /layer/opt/pipeline && rm -r locks \
    && python3 -B -c "import json; from pathlib import Path; from pipeline.container import checkout; print(json.dumps(checkout.digests(Path())))" > ../pipeline.json \
    && python3 -m compileall -q --invalidation-mode unchecked-hash -s /layer /layer/opt/pipeline \
    && chmod -R u=rwX,go=rX /layer \
    && find /layer -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

# for .devcontainer/: what `make setup-dev`, `make check` and `make test` need beside the system packages, and a user with a name
FROM system AS development
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends make openssh-client python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --non-unique --uid 1000 --create-home --shell /bin/bash developer

FROM system
COPY --from=dependencies /opt/venv /opt/venv
# Python's headers, which train.compile needs to build kernels
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

# last, because it changes with each commit
ARG BASE_IMAGE
ARG REVISION=unknown
ARG VERSION=unknown
ENV PIPELINE_IMAGE_REVISION=${REVISION}
LABEL org.opencontainers.image.title="pipeline" \
      org.opencontainers.image.description="A reproducible training pipeline: DVC stages, typed parameters, MLflow tracking" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
