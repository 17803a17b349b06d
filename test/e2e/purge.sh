# A machine of our own: everything that the cloud can leave behind is private to this story, so that whatever differs
# in the end was left by it. Written files are in the upper layers of $OWN/files.
# hierarchies are the mounted ones of both versions of cgroups: where, which version, and with which options.
while read -r _ _ _ _ at _ rest; do
	read -r kind _ options <<< "${rest#*- }"
	case $kind in cgroup | cgroup2) hierarchies+=("$at $kind ${options#rw,}") ;; esac
done < /proc/self/mountinfo

if [ -z "${OWN:-}" ]; then
	leave() {
		code=$?
		set +e
		for hierarchy in "${hierarchies[@]}"; do
			root=${hierarchy%% *}
			echo $$ > "$root/cgroup.procs"
			find "$root/story-$$" -depth -type d -exec rmdir {} +
		done
		exit $code
	}
	trap leave EXIT
	for hierarchy in "${hierarchies[@]}"; do
		root=${hierarchy%% *}
		mkdir "$root/story-$$"
		if [ -e "$root/cpuset.mems" ]; then
			cat "$root/cpuset.cpus" > "$root/story-$$/cpuset.cpus"
			cat "$root/cpuset.mems" > "$root/story-$$/cpuset.mems"
		fi
		echo $$ > "$root/story-$$/cgroup.procs"
	done
	OWN=/mnt unshare --mount --net --pid --cgroup --ipc --fork --kill-child --propagation private bash -euo pipefail -c "$STORY"
	exit
fi

mount -t proc proc /proc
mount -t tmpfs none "$OWN"
mkdir -p "$OWN/bin" "$OWN/home" "$OWN/files" "$OWN/scratch"
cp -L "$BIN"/* "$OWN/bin" # which is not seen from here otherwise
for folder in etc var root usr opt srv home; do
	mkdir "$OWN/files/$folder" "$OWN/scratch/$folder"
	mount -t overlay -o "lowerdir=/$folder,upperdir=$OWN/files/$folder,workdir=$OWN/scratch/$folder" none "/$folder"
done
for folder in run tmp var/tmp dev/shm; do mount -t tmpfs none "/$folder"; done
mkdir /run/netns # as ip netns would
# What this machine shows of the cgroups is below the story's own.
for hierarchy in "${hierarchies[@]}"; do
	read -r at kind options <<< "$hierarchy"
	umount "$at"
	if [ "$kind" = cgroup ]; then mount -t cgroup -o "$options" none "$at"; else mount -t cgroup2 none "$at"; fi
done
if [ -e /sys/fs/cgroup/cgroup.subtree_control ]; then # only cgroups without processes hand controllers down
	mkdir /sys/fs/cgroup/story
	echo 1 > /sys/fs/cgroup/story/cgroup.procs
	sed 's/\</+/g' /sys/fs/cgroup/cgroup.controllers > /sys/fs/cgroup/cgroup.subtree_control
fi
ip link set lo up
ip link add uplink type bridge && sysctl -qw net.ipv6.conf.uplink.disable_ipv6=1 && ip link set uplink up && ip addr add 192.0.2.1/24 dev uplink

BIN="$OWN/bin"
export PATH="$BIN:$PATH" HOME="$OWN/home" CLOUDLESS_CONFIG="$OWN/config.yaml" CLOUDLESS_DATA_DIR="$OWN/home/data"

# inventory KIND lists what there is of a kind, one thing a line.
inventory() {
	case $1 in
	mount) awk '{ print $5, $(NF-2), $(NF-1) }' /proc/self/mountinfo ;;
	namespace) lsns --noheadings --output TYPE,NS | sort -u && ls /run/netns ;;
	link) ip -o link | awk '{ print $2 }' ;;
	address) ip -o addr | awk '{ print $2, $4 }' ;;
	route) ip route show table all && ip -6 route show table all && ip rule && ip -6 rule ;;
	table) nft list ruleset ;;
	setting) sysctl -a 2> /dev/null | grep -E 'forward|rp_filter|route_localnet|bridge-nf|disable_ipv6' | grep -v 'conf\.\(cl\|cv\)' ;;
	cgroup) find /sys/fs/cgroup -type d ;;
	process) ps -eo stat=,comm= | awk '$1 !~ /Z/ && $2 !~ /^(bash|ps|awk|sort)$/' ;; # zombies wait for this story
	socket) ss -Hlanx | awk '{ print $1, $5 }' && ss -Hlntu ;;
	file) find "$OWN/files" "$OWN/home" /run /tmp /var/tmp /dev/shm -print ;;
	esac | sort
}
kinds="mount namespace link address route table setting cgroup process socket file"

# remember FOLDER writes all inventories into files of a folder.
remember() {
	mkdir -p "$OWN/$1"
	for kind in $kinds; do inventory "$kind" > "$OWN/$1/$kind"; done
}

# unchanged FOLDER compares them with what there is now.
unchanged() {
	remember now
	for kind in $kinds; do
		if ! diff "$OWN/$1/$kind" "$OWN/now/$kind"; then echo "the inventory of kind $kind differs" && differs=1; fi
	done
	[ -z "${differs:-}" ]
}

step() { echo "--- $*"; }
running() { cloudless workload get web -o json | grep -q '"running": 2'; }

remember before

step a cloud with replicas has something of every kind
cloudless up --detach --api-addr 127.0.0.1:7700
cloudless run "$BIN/probe" --name web --replicas 2 --publish 8080:8000 -- serve 8000
cloudless run "$BIN/probe" --name alone --network none -- sleep
remember running
for kind in $kinds; do
	if cmp -s "$OWN/before/$kind" "$OWN/running/$kind"; then echo "a running cloud has nothing of kind $kind that this story sees" && exit 1; fi
done

step down keeps the data: up brings everything back
cloudless down
if cloudless ps; then exit 1; fi
cloudless up --detach --api-addr 127.0.0.1:7700
until running; do sleep 0.05; done

step purge also works after the process was killed
kill -9 "$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$CLOUDLESS_DATA_DIR/lock")"
cloudless down --purge
test ! -e "$CLOUDLESS_DATA_DIR"
unchanged before

# The configuration of the command line is the user's. It stays, and knows no cloud any more.
test "$(cat "$CLOUDLESS_CONFIG")" = '{}'

step a second time does no harm
cloudless down --purge
unchanged before
