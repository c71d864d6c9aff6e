# For the scripts beside this one.
# phase NAME COMMAND...: runs the command, then says how long it took.
phase() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || { echo "== $name failed after $((SECONDS - start)) s" >&2; exit 1; }
  echo "== $name: $((SECONDS - start)) s"
}
