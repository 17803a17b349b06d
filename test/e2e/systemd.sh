# A systemd of our own: what it takes for the machine's is private to this story.
ip link set lo up
mount -t tmpfs none /run
mount -t tmpfs none /etc/systemd/system
mkdir -p /run/systemd/system /run/user/0 "$WORK/config/systemd" "$WORK/path"
ln -s /etc/systemd/system "$WORK/config/systemd/user"
export XDG_RUNTIME_DIR=/run/user/0 XDG_CONFIG_HOME="$WORK/config"
printf '#!/bin/sh\nexec /usr/bin/systemctl --user "$@"\n' > "$WORK/path/systemctl"
chmod +x "$WORK/path/systemctl"
printf '[Unit]\nDescription=nothing yet\n' > /etc/systemd/system/story.target

groups=()
for root in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
	if [ -e "$root/cgroup.procs" ]; then groups+=("$root/story-$$"); fi
done
leave() {
	code=$?
	set +e
	if [ -e "$WORK/data/cloud.json" ]; then cloudless down --purge; fi
	systemctl exit
	wait
	for group in "${groups[@]}"; do
		echo $$ > "${group%/*}/cgroup.procs"
		find "$group" -depth -type d -exec rmdir {} +
	done
	exit $code
}
trap leave EXIT
for group in "${groups[@]}"; do
	mkdir "$group"
	echo $$ > "$group/cgroup.procs"
done
/lib/systemd/systemd --user --unit=story.target --log-target=console > "$WORK/systemd.log" 2>&1 &
until systemctl is-active --quiet story.target 2> /dev/null; do sleep 0.05; done

step() { echo "--- $*"; }
main_pid() { systemctl show --property MainPID --value cloudless.service; }
replica_pid() { cloudless ps -o json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'; }

step install: ready means ready
cloudless install --bin-dir "$WORK/bin"
cloudless run "$BIN/probe" --name web -- sleep
first=$(main_pid)
replica=$(replica_pid)
test -n "$replica"
test "$(readlink "/proc/$first/exe")" = "$WORK/bin/cloudless"

step upgrade: another process, the same container
cp "$(readlink -f "$BIN/cloudless")" "$WORK/newer"
printf 'newer' >> "$WORK/newer"
"$WORK/newer" install --bin-dir "$WORK/bin"
cmp "$WORK/newer" "$WORK/bin/cloudless"
second=$(main_pid)
test "$second" != "$first"
test "$(replica_pid)" = "$replica"

step a version that does not come up is taken back
if cloudless install --bin-dir "$WORK/bin" -- --api-addr 192.0.2.1:1; then exit 1; fi
cmp "$WORK/newer" "$WORK/bin/cloudless"
test "$(replica_pid)" = "$replica"

step kill -9: systemd restarts the process, the container keeps running
second=$(main_pid)
kill -9 "$second"
until [ "$(main_pid)" != "$second" ] && systemctl is-active --quiet cloudless.service; do sleep 0.05; done
test "$(replica_pid)" = "$replica"

step uninstall: the container keeps running without the service
cloudless uninstall
test ! -e "$WORK/bin/cloudless"
test ! -e /etc/systemd/system/cloudless.service
test -d "/proc/$replica"

step install replaces a process that was started by hand
cloudless up --detach
cloudless install --bin-dir "$WORK/bin"
test "$(replica_pid)" = "$replica"

step uninstall --purge: nothing is left
cloudless uninstall --purge
test ! -d "/proc/$replica"
test ! -e "$WORK/data"
