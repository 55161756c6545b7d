# Troupe on Debian 12, set up by the same script as everywhere: docker build -t troupe . && docker run --rm troupe
FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git && rm -rf /var/lib/apt/lists/*
WORKDIR /root/project

# What is downloaded, in a layer of its own: it changes with the lists of packages and wheels only.
COPY dev ./
COPY .ci/debian-packages.txt .ci/
RUN ./dev setup && rm -rf /var/lib/apt/lists/* /root/.cache/pip

COPY . .
RUN ./dev build
CMD ["./dev", "demo"]
