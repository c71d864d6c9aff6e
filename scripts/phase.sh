# For the scripts beside this one.
# phase NAME COMMAND...: runs the command, then says how long it took. phases_done: all of them, in one line.
phase_times=""
phase() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || { phases_done; echo "== $name failed after $((SECONDS - start)) s" >&2; exit 1; }
  echo "== $name: $((SECONDS - start)) s"
  phase_times+="$name $((SECONDS - start)) s, "
}
phases_done() { echo "== ${phase_times}on $(nproc) processors"; }
