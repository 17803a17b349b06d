package machine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// limits finds the cgroups of this process. A limit of any ancestor counts, so every
// controller has its folders from our own group up to the highest visible one.
type limits struct {
	cpu, mem, pid hierarchy
}

// hierarchy is one controller's folders, our own first.
type hierarchy struct {
	unified bool // cgroup v2
	dirs    []string
}

// findLimits supports cgroup v1, v2 and hybrid setups: with hybrid cgroups a controller is
// in its own hierarchy if it has one, and otherwise in the unified one.
func findLimits(root root) (limits, error) {
	groups, err := root.read("proc/self/cgroup")
	if errors.Is(err, os.ErrNotExist) {
		return limits{}, nil // a kernel without cgroups
	}
	if err != nil {
		return limits{}, err
	}
	mounts, err := root.read("proc/self/mountinfo")
	if err != nil {
		return limits{}, err
	}
	own := parseGroups(string(groups))
	mounted := parseMounts(string(mounts))
	return limits{
		cpu: findHierarchy("cpu", own, mounted),
		mem: findHierarchy("memory", own, mounted),
		pid: findHierarchy("pids", own, mounted),
	}, nil
}

// parseGroups maps each controller to our group within its hierarchy. The unified hierarchy
// has an empty name.
func parseGroups(file string) map[string]string {
	groups := map[string]string{}
	for line := range strings.Lines(file) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			groups[controller] = parts[2]
		}
	}
	return groups
}

// mount is one mounted hierarchy.
type mount struct {
	root  string // the group at the mount's root
	point string
}

// parseMounts maps each controller to where its hierarchy is mounted. The unified hierarchy
// has an empty name.
func parseMounts(file string) map[string]mount {
	mounts := map[string]mount{}
	for line := range strings.Lines(file) {
		before, after, found := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(place) < 5 || len(kind) < 3 {
			continue
		}
		m := mount{root: place[3], point: place[4]}
		switch kind[0] {
		case "cgroup2":
			mounts[""] = m
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				mounts[option] = m
			}
		}
	}
	return mounts
}

func findHierarchy(controller string, groups map[string]string, mounts map[string]mount) hierarchy {
	h := hierarchy{}
	group, found := groups[controller]
	m, mounted := mounts[controller]
	if !found || !mounted {
		h.unified = true
		group, found = groups[""]
		if m, mounted = mounts[""]; !found || !mounted {
			return hierarchy{}
		}
	}
	// In a container without a cgroup namespace, the mount's root is our own group or an
	// ancestor. Groups above it are invisible.
	below, inside := strings.CutPrefix(group, strings.TrimSuffix(m.root, "/"))
	if !inside || (below != "" && below[0] != '/') {
		below = "/"
	}
	for dir := path.Join("/", below); ; dir = path.Dir(dir) {
		h.dirs = append(h.dirs, path.Join(m.point, dir))
		if dir == "/" {
			return h
		}
	}
}

// cpuQuota is in thousandths of a CPU, and math.MaxInt64 if there is none.
func (l limits) cpuQuota(root root) (int64, error) {
	lowest := int64(math.MaxInt64)
	for _, dir := range l.cpu.dirs {
		quota, period, err := l.cpu.quota(root, dir)
		if err != nil {
			return 0, err
		}
		if quota > 0 && period > 0 {
			lowest = min(lowest, max(1, quota*1000/period))
		}
	}
	return lowest, nil
}

// quota is 0 if the group has none.
func (h hierarchy) quota(root root, dir string) (quota, period int64, err error) {
	if !h.unified {
		if quota, err = number(root, path.Join(dir, "cpu.cfs_quota_us")); err != nil || quota <= 0 {
			return 0, 0, err
		}
		period, err = number(root, path.Join(dir, "cpu.cfs_period_us"))
		return quota, period, err
	}
	text, err := optionalLine(root, path.Join(dir, "cpu.max"))
	if err != nil || text == "" || strings.HasPrefix(text, "max") {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(text, "%d %d", &quota, &period); err != nil {
		return 0, 0, fmt.Errorf("%s/cpu.max is %q: %w", dir, text, err)
	}
	return quota, period, nil
}

// memory is the tightest limit and the usage of the group that has it. Reclaimable file
// cache does not count as used.
func (l limits) memory(root root) (tightest amount, limited bool, err error) {
	limitFile, usedFile, cacheField := "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "
	if l.mem.unified {
		limitFile, usedFile, cacheField = "memory.max", "memory.current", "inactive_file "
	}
	tightest, dir, err := l.mem.tightest(root, limitFile, usedFile)
	if err != nil || dir == "" {
		return amount{}, false, err
	}
	stat, err := root.read(path.Join(dir, "memory.stat"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return amount{}, false, err
	}
	if text, found := field(stat, cacheField); found {
		cache, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return amount{}, false, fmt.Errorf("%s/memory.stat: %w", dir, err)
		}
		tightest.used = max(0, tightest.used-cache)
	}
	return tightest, true, nil
}

func (l limits) pids(root root) (tightest amount, limited bool, err error) {
	tightest, dir, err := l.pid.tightest(root, "pids.max", "pids.current")
	return tightest, dir != "", err
}

// tightest is the lowest limit from our group upwards and the folder that has it, which is
// empty if there is none.
func (h hierarchy) tightest(root root, limitFile, usedFile string) (lowest amount, where string, err error) {
	for _, dir := range h.dirs {
		limit, err := number(root, path.Join(dir, limitFile))
		if err != nil {
			return amount{}, "", err
		}
		if limit <= 0 || (where != "" && limit >= lowest.total) {
			continue
		}
		used, err := number(root, path.Join(dir, usedFile))
		if err != nil {
			return amount{}, "", err
		}
		lowest, where = amount{total: limit, used: max(0, used)}, dir
	}
	return lowest, where, nil
}

// number reads a cgroup file. It is -1 if the file holds "max" or is missing, as at the
// root of a hierarchy or for a disabled controller.
func number(root root, path string) (int64, error) {
	text, err := optionalLine(root, path)
	if err != nil || text == "" || text == "max" {
		return -1, err
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "-"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if text[0] == '-' || n > math.MaxInt64 {
		return -1, nil
	}
	return int64(n), nil
}

func optionalLine(root root, path string) (string, error) {
	text, err := root.line(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return text, err
}
