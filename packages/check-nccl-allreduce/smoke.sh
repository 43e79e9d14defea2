# Run in the image as it is built: torch is there, loads and can speak with other processes. Ends the build with one sentence where not.
image=preflight-nccl-allreduce
said=$(python -c 'import torch.distributed as d; assert d.is_available(), "torch was built without distributed"' 2>&1) || {
  echo "$image: torch does not load in this image ($(printf '%s' "$said" | tail -n 1)); build it on a base that has torch for its python3: --base $image=BASE." >&2
  exit 1
}
