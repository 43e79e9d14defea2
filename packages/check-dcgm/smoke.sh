# Run in the image as it is built: dcgmi is there, finds its libraries and starts. Ends the build with one sentence where not.
image=preflight-dcgm-diag
command -v dcgmi >/dev/null || {
  echo "$image: dcgmi is not on PATH of the base image; build it on one that has DCGM's client: --base $image=BASE." >&2
  exit 1
}
for tool in dcgmi dcgmi3; do
  command -v "$tool" >/dev/null || continue # dcgmi3 is for older engines, and optional
  said=$("$tool" --version 2>&1) || {
    echo "$image: $tool does not start: $(printf '%s' "$said" | tail -n 1)" >&2
    exit 1
  }
done
