# The image holds the static binary and nothing else. `make image` builds the binary first, for each
# architecture that is asked for, and then this.
FROM scratch
ARG TARGETARCH
COPY LICENSE bin/LICENSES /licenses/
COPY bin/linux-${TARGETARCH}/sluice /usr/local/bin/sluice
ENV PATH=/usr/local/bin
ENTRYPOINT ["/usr/local/bin/sluice"]
CMD ["help"]
