# The image holds the static binaries and nothing else. `make image` builds them first, for each
# architecture that is asked for, and then this.
FROM scratch
ARG TARGETARCH
COPY LICENSE bin/LICENSES /licenses/
COPY bin/linux-${TARGETARCH}/sluice bin/linux-${TARGETARCH}/sluice-bgp bin/linux-${TARGETARCH}/sluice-cni /usr/local/bin/
ENV PATH=/usr/local/bin
ENTRYPOINT ["/usr/local/bin/sluice"]
CMD ["help"]
