# Run in the image as it is built: all_reduce_perf is there, finds its libraries and starts. Ends the build with one sentence where not.
image=preflight-nccl-loopback
tool=$(command -v all_reduce_perf) || {
  echo "$image: all_reduce_perf is not on PATH of the base image; build it on one that has nccl-tests, such as base.Dockerfile makes." >&2
  exit 1
}
lacking=$(ldd "$tool" | grep 'not found' | grep -v 'libcuda\.so' | tr -s '\t\n' ' ')
[ -z "$lacking" ] || {
  echo "$image: $tool does not find its libraries ($lacking); bring them into the image, or set LD_LIBRARY_PATH in the base." >&2
  exit 1
}
# Without a driver it starts, and ends at the first call of CUDA; with one it measures 8 bytes on one GPU.
said=$("$tool" -b 8 -e 8 -g 1 2>&1) && exit 0
case $said in
*"CUDA driver version is insufficient"* | *"no CUDA-capable device"* | *"libcuda.so"*) ;;
*)
  echo "$image: $tool does not start: $(printf '%s' "$said" | tail -n 1)" >&2
  exit 1
  ;;
esac
