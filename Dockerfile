# One image for the simulator and for every simulated server; containers/README.md says what they do.
# Needs BuildKit (`docker compose build`, or `docker build` of an engine since 23.0). Build arguments:
#   BASE_IMAGE  a Debian-like image with Python 3.10 to 3.12 and pip
#   EXTRAS      extras of pyproject.toml and packages of PyPI that the jobs import: "frameworks", "torchtitan==0.2.2"
#   COMPILER    1 keeps a C++ compiler in the image, for jobs that use torch.compile
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/venv/bin:$PATH LANG=C.UTF-8

# Compiler and headers; nothing of this stage but what it built reaches the image.
FROM base AS compiler
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ ccache binutils \
 && (python3 -c "import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'))" \
     || apt-get install -y --no-install-recommends python3-dev python3-venv) \
 && rm -rf /var/lib/apt/lists/*

# torch and phantom's own packages. Stages are laid out so that an edit of the sources installs nothing again, and
# other EXTRAS neither torch nor compile anything.
FROM compiler AS torch
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv --without-pip /opt/venv \
 && echo "torch==${TORCH}" > /opt/constraints.txt \
 && (pip --python /opt/venv/bin/python install "torch==${TORCH}+cpu" \
     || pip --python /opt/venv/bin/python install "torch==${TORCH}" --index-url "${TORCH_INDEX}")
COPY pyproject.toml containers/requirements.py /opt/requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 /opt/requirements/requirements.py > /opt/requirements.txt \
 && pip --python /opt/venv/bin/python install -c /opt/constraints.txt -r /opt/requirements.txt

FROM torch AS extras
ARG EXTRAS=""
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 /opt/requirements/requirements.py ${EXTRAS} > /opt/requirements.txt \
 && DS_BUILD_OPS=0 pip --python /opt/venv/bin/python install -c /opt/constraints.txt -r /opt/requirements.txt

# The C++ extension. The compiler's cache outlives the build, so that an edit compiles what it touched.
FROM torch AS extension
ENV CCACHE_DIR=/root/.cache/ccache
COPY interpose/__init__.py interpose/build.py /opt/phantom/interpose/
COPY interpose/csrc /opt/phantom/interpose/csrc
WORKDIR /opt/phantom
RUN --mount=type=cache,target=/root/.cache/ccache \
    python -m interpose.build -q \
 && strip --strip-debug interpose/_build/*/_C.so \
 && rm -f interpose/_build/*/*.o interpose/_build/*/*.o.d

FROM base
ARG COMPILER=0
RUN if [ "${COMPILER}" = 1 ]; then \
      apt-get update && apt-get install -y --no-install-recommends g++ \
      && (python3 -c "import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'))" \
          || apt-get install -y --no-install-recommends python3-dev) \
      && rm -rf /var/lib/apt/lists/*; \
    fi
# Any user id may run the image: the home folder and the two mount points are writable by all.
RUN mkdir -p /home/phantom /job /results && chmod 1777 /home/phantom /job /results \
 && echo "phantom:x:1000:1000:phantom:/home/phantom:/bin/sh" >> /etc/passwd && echo "phantom:x:1000:" >> /etc/group
COPY --from=extras /opt/venv /opt/venv
COPY --from=extension /opt/phantom/interpose/_build /opt/phantom/interpose/_build
COPY pyproject.toml README.md /opt/phantom/
COPY interpose /opt/phantom/interpose
COPY netsim /opt/phantom/netsim
COPY phantom /opt/phantom/phantom
COPY containers /opt/phantom/containers
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-build-isolation -e /opt/phantom \
 && cd /opt/phantom && python -m compileall -q interpose phantom netsim containers \
 && python -c "import sysconfig; from interpose import pth; pth.install(sysconfig.get_paths()['purelib'])"
ENV HOME=/home/phantom USER=phantom XDG_CACHE_HOME=/home/phantom/.cache
USER 1000:1000
WORKDIR /job
ENTRYPOINT ["python", "/opt/phantom/containers/entrypoint.py"]
CMD ["phantom", "--help"]
