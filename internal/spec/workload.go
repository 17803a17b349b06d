package spec

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// minMemory is the least that a process with its kernel structures fits in.
	minMemory = 4 << 20
	// minCPU is the kernel's smallest quota, 1 ms in a period of 100 ms.
	minCPU = 10
	// minBandwidth is the least with which connections still work: a packet takes an eighth of a second.
	minBandwidth = 100_000
	// maxArguments stays below Linux's limit of 2 MiB for the arguments and the environment
	// of a process.
	maxArguments = 1 << 20
)

// The syntax of an image's name before its digest, without the registry, and that of the
// digest. validImage checks the lengths of tag and digest, because bounded repetitions make
// a regular expression large and slow.
var (
	imageName = lazyRegexp(`^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*` +
		`(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	imageDigest = lazyRegexp(`^[a-z0-9]+:[0-9a-f]+$`)
	// byDigest matches an image by its digest, or by the prefix of it that tables show.
	byDigest = lazyRegexp(`^[^@]+@sha256:[0-9a-f]+$`)
)

const (
	maxImageTag                = 128
	minDigestHex, maxDigestHex = 32, 128
)

func validImage(s string) bool {
	if plainImage(s) {
		return true
	}
	name, digest, digested := strings.Cut(s, "@")
	if digested && !validDigest(digest) {
		return false
	}
	// After the last colon is the tag, or a registry's port and the path.
	colon := strings.LastIndexByte(name, ':')
	tagged := colon >= 0 && !strings.Contains(name[colon:], "/")
	if tagged && len(name)-colon-1 > maxImageTag {
		return false
	}
	return imageName().MatchString(name)
}

// plainImage recognizes the commonest form, a word with or without a tag, faster.
func plainImage(s string) bool {
	name, tag, tagged := strings.Cut(s, ":")
	if tagged && (tag == "" || len(tag) > maxImageTag || tag[0] == '.' || tag[0] == '-') {
		return false
	}
	const lower, upper, digits = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
	return name != "" && strings.Trim(name, lower+digits) == "" && strings.Trim(tag, lower+upper+digits+"_.-") == ""
}

func validDigest(s string) bool {
	_, hex, _ := strings.Cut(s, ":")
	return len(hex) >= minDigestHex && len(hex) <= maxDigestHex && imageDigest().MatchString(s)
}

func init() { checkObjects(checkWorkload) }

// HiddenValue is what callers who may not update a workload see in place of the value of a variable. It is refused as a
// value, so that nobody stores it by writing what they have read.
const HiddenValue = "(hidden: shown to roles that may update the workload)"

// IsVariable reports whether the path of a changed field is that of variables, whose values may be hidden.
func IsVariable(path string) bool {
	return path == "spec.env" || strings.HasPrefix(path, "spec.env[") || strings.HasPrefix(path, "spec.env.")
}

func checkHidden(s *v1.WorkloadSpec, found *violations) {
	for _, name := range slices.Sorted(maps.Keys(s.GetEnv())) {
		if s.GetEnv()[name] == HiddenValue {
			found.add("spec.env["+name+"]", "is not the value, but the mark that replaces it for callers who may not see it; give the value, or ask for a role that may update the workload")
		}
	}
}

// checkWorkload checks what the API's rules cannot express: how fields depend on each
// other.
func checkWorkload(w *v1.Workload, found *violations) {
	if w.GetMetadata() != nil && w.GetMetadata().GetName() == "" {
		found.add("metadata.name", "is missing")
	}
	if w.GetSpec() == nil {
		return
	}
	// Defaults count: a backoff must not be longer than the longest one, even if that was
	// omitted.
	s := Normalized(w.GetSpec())
	switch {
	case s.Image == "" || validImage(s.Image):
	case byDigest().MatchString(s.Image):
		found.add("spec.image", "has a digest that is not whole: write all 64 digits, which cloudless image get %s shows", s.Image)
	default:
		found.add("spec.image", "must be the name of an image such as hello:1, example.com/team/hello:1 or hello@sha256:…")
	}
	checkArguments(s, found)
	checkHidden(s, found)
	checkResources(w.GetSpec().GetResources(), s.Resources, found)
	checkPorts(s, found)
	checkDurations(s, found)
	checkProbes(s, found)
	checkPlacement(s.Placement, found)
	checkKind(w.GetMetadata().GetName(), w.GetSpec(), s, found)
	checkUpdate(s, found)
	checkSingleton(s, found)
	readAmount("spec.lostAfter", s.GetLostAfter(), ParseDuration, found)
	checkAutoscale(w.GetSpec(), s, found)
	checkEgress(s, found)
	checkSecurity(s, found)
	checkSecrets(w.GetSpec(), s, found)
	checkIdentity(s, found)
	checkRelease(w.GetMetadata().GetName(), s, found)
	checkDependsOn(w.GetMetadata().GetName(), s, found)
}

func checkArguments(s *v1.WorkloadSpec, found *violations) {
	total := 0
	for _, list := range [][]string{s.Command, s.Args} {
		for _, arg := range list {
			total += len(arg) + 1
		}
	}
	for key, value := range s.Env {
		total += len(key) + len(value) + 2
	}
	if len(s.Command) > 0 && s.Command[0] == "" {
		found.add("spec.command[0]", "is empty: name the program, or leave command out for the image's own")
	}
	checkNoZeros("spec.", process{s.Command, s.Args, s.Env, s.WorkingDir}, found)
	checkUser("spec.user", s.User, found)
	if total > maxArguments {
		found.add("spec.env", "is too large: command, args and env have %d bytes together and may have %d; put large contents into the image", total, maxArguments)
	}
}

// process is how a program is started.
type process struct {
	command, args []string
	env           map[string]string
	workingDir    string
}

// checkNoZeros refuses zero bytes, which end a string in the kernel.
func checkNoZeros(prefix string, p process, found *violations) {
	const why = "has a byte of value 0, which no program can be given"
	check := func(path, text string) {
		if strings.Contains(text, "\x00") {
			found.add(path, why)
		}
	}
	for i, text := range p.command {
		check(indexPath(prefix+"command", i), text)
	}
	for i, text := range p.args {
		check(indexPath(prefix+"args", i), text)
	}
	for _, key := range slices.Sorted(maps.Keys(p.env)) {
		check(keyPath(prefix+"env", key), p.env[key])
	}
	check(prefix+"workingDir", p.workingDir)
}

// checkExec refuses commands that can only fail.
func checkExec(msg proto.Message, found *violations) {
	carried, ok := msg.(interface{ GetStart() *v1.ExecStart })
	if !ok || carried.GetStart() == nil {
		return
	}
	s := carried.GetStart()
	if len(s.Command) > 0 && s.Command[0] == "" {
		found.add("start.command[0]", "is empty: name the program to run")
	}
	checkNoZeros("start.", process{command: s.Command, env: s.Env, workingDir: s.WorkingDir}, found)
	checkUser("start.user", s.User, found)
	checkWorkingDir("start.workingDir", s.WorkingDir, found)
}

// checkUser refuses numbers that no user or group can have.
func checkUser(path, user string, found *violations) {
	for part := range strings.SplitSeq(user, ":") {
		if strings.Trim(part, "0123456789") != "" || part == "" {
			continue // a name
		}
		if n, err := strconv.ParseUint(part, 10, 64); err != nil || n > math.MaxInt32 {
			found.add(path, "%s is too large for the number of a user or a group, which is at most %d", part, math.MaxInt32)
		}
	}
}

// checkResources gets what the author wrote and its canonical form, so that a request that
// follows from a limit is not blamed on the author.
func checkResources(written, r *v1.Resources, found *violations) {
	const path = "spec.resources"
	if gpu := written.GetGpu(); gpu.GetModel() != "" && gpu.GetCount() == 0 {
		found.add(path+".gpu.count", "is missing: say how many of model %s", gpu.GetModel())
	}
	limitCPU, okCPU := readAmount(path+".limits.cpu", r.GetLimits().GetCpu(), ParseCPU, found)
	limitMemory, okMemory := readAmount(path+".limits.memory", r.GetLimits().GetMemory(), ParseBytes, found)
	switch {
	case okCPU && limitCPU == 0:
		found.add(path+".limits.cpu", "must be more than 0; leave it out for no limit")
	case okCPU && limitCPU < minCPU:
		found.add(path+".limits.cpu", "a CPU limit of %s is too small: the kernel holds none below %s", FormatCPU(limitCPU), FormatCPU(minCPU))
	}
	if okMemory && limitMemory < minMemory {
		found.add(path+".limits.memory", "a memory limit of %s is too small: nothing can run below %s", FormatBytes(limitMemory), FormatBytes(minMemory))
	}
	checkNetworkAndDisk(written, found)
	if n, ok := readAmount(path+".requests.cpu", written.GetRequests().GetCpu(), ParseCPU, found); ok && okCPU && n > limitCPU {
		found.add(path+".requests.cpu", "must be at most the limit: %s is more than %s", FormatCPU(n), FormatCPU(limitCPU))
	}
	if n, ok := readAmount(path+".requests.memory", written.GetRequests().GetMemory(), ParseBytes, found); ok && okMemory && n > limitMemory {
		found.add(path+".requests.memory", "must be at most the limit: %s is more than %s", FormatBytes(n), FormatBytes(limitMemory))
	}
}

// minDisk is the smallest limit of the disk: a layer always has a few files.
const minDisk = 1 << 20

// checkNetworkAndDisk refuses limits of the disk and the bandwidth that make no sense.
func checkNetworkAndDisk(written *v1.Resources, found *violations) {
	const path = "spec.resources"
	requestedDisk, _ := readAmount(path+".requests.disk", written.GetRequests().GetDisk(), ParseBytes, found)
	disk, ok := readAmount(path+".limits.disk", written.GetLimits().GetDisk(), ParseBytes, found)
	switch {
	case ok && disk < minDisk:
		found.add(path+".limits.disk", "a disk limit of %s is too small: give at least %s, or leave it out for that of the cluster", FormatBytes(disk), FormatBytes(minDisk))
	case ok && requestedDisk > disk:
		found.add(path+".requests.disk", "must be at most the limit: %s is more than %s", FormatBytes(requestedDisk), FormatBytes(disk))
	}
	readAmount(path+".requests.bandwidth", written.GetRequests().GetBandwidth(), ParseBandwidth, found)
	limit, ok := readAmount(path+".limits.bandwidth", written.GetLimits().GetBandwidth(), ParseBandwidth, found)
	switch requested, _ := ParseBandwidth(written.GetRequests().GetBandwidth()); {
	case ok && limit < minBandwidth:
		found.add(path+".limits.bandwidth", "a bandwidth limit of %s is too small: give at least %s, or leave it out for no limit", FormatBandwidth(limit), FormatBandwidth(minBandwidth))
	case ok && requested > limit:
		found.add(path+".requests.bandwidth", "must be at most the limit: %s is more than %s", FormatBandwidth(requested), FormatBandwidth(limit))
	}
}

// readAmount parses an optional amount. The API's rules refuse malformed ones; the rest is
// what they cannot compute.
func readAmount[T any](path, s string, parse func(string) (T, error), found *violations) (T, bool) {
	var none T
	if s == "" || found.has(path) {
		return none, false
	}
	n, err := parse(s)
	if err != nil {
		found.add(path, "%v", err)
		return none, false
	}
	return n, true
}

// sshPort cannot be published, nor meshPort by UDP and chunkPort by TCP, and dnsPort only at one address: the resolver of
// each node has it at the address of the bridge.
const sshPort, dnsPort, meshPort, chunkPort = 22, 53, 7701, 7702

func checkPorts(s *v1.WorkloadSpec, found *violations) {
	if s.Network == "none" && len(s.Ports) > 0 {
		found.add("spec.ports", "cannot be reached with network none; leave them out or use network node")
		return
	}
	names, numbers, published := map[string]int{}, map[string]int{}, map[string]int{}
	for i, p := range s.Ports {
		path := indexPath("spec.ports", i)
		if first, taken := names[p.GetName()]; taken && p.GetName() != "" {
			found.add(path+".name", "is the name of %s too; names of ports must differ", indexPath("spec.ports", first))
		} else {
			names[p.GetName()] = i
		}
		number := fmt.Sprintf("%d/%s", p.GetPort(), p.GetProtocol())
		if first, taken := numbers[number]; taken {
			found.add(path+".port", "%s is the port of %s too", number, indexPath("spec.ports", first))
		} else {
			numbers[number] = i
		}
		outside := fmt.Sprintf("%d/%s", p.GetPublish(), p.GetProtocol())
		if a := p.GetPublishAddress(); a != "" {
			outside = fmt.Sprintf("%s at %s", outside, a)
		}
		if first, taken := published[outside]; taken && p.GetPublish() != 0 {
			found.add(path+".publish", "%s is published by %s too; choose another port of the node", outside, indexPath("spec.ports", first))
		} else {
			published[outside] = i
		}
		checkPublish(s, p, path, found)
		if s.Network == "host" && p.GetPublish() != 0 && p.GetPublish() != p.GetPort() {
			found.add(path+".publish", "must be %d like port, or left out: with network host ports are not translated", p.GetPort())
		}
	}
}

// PublishCluster and PublishHost are modes of published ports.
const (
	PublishCluster = "cluster"
	PublishHost    = "host"
)

func checkPublish(s *v1.WorkloadSpec, p *v1.Port, path string, found *violations) {
	if p.GetPublish() == sshPort {
		found.add(path+".publish", "%d is the port of SSH, by which people reach the node; choose another", sshPort)
	}
	if p.GetPublish() == dnsPort && p.GetPublishAddress() == "" && s.Network != "host" {
		found.add(path+".publish", "%d is the port of the resolver that every node has; publish it at one address of the nodes with publishAddress, or choose another", dnsPort)
	}
	if p.GetPublish() == meshPort && p.GetProtocol() == "udp" {
		found.add(path+".publish", "%d/udp is the port of the mesh, by which the nodes reach each other; choose another", meshPort)
	}
	if p.GetPublish() == chunkPort && p.GetProtocol() != "udp" {
		found.add(path+".publish", "%d/tcp is the port by which the nodes get chunks of the object store from each other; choose another", chunkPort)
	}
	for _, field := range []struct{ name, value string }{{".publishMode", p.GetPublishMode()}, {".publishAddress", p.GetPublishAddress()}} {
		switch {
		case field.value == "":
		case p.GetPublish() == 0:
			found.add(path+field.name, "is for published ports: give publish too, or leave it out")
		case s.Network == "host":
			found.add(path+field.name, "must be left out: with network host the program itself decides where it listens")
		}
	}
	if text := p.GetPublishAddress(); text != "" {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast():
			found.add(path+".publishAddress", "%q is not an address of one network interface, such as 127.0.0.1 or 192.0.2.7", text)
		case a.IsLinkLocalUnicast():
			found.add(path+".publishAddress", "%q is a link-local address, which nothing is published at; give another address of the nodes, such as 192.0.2.7, or leave it out for all", text)
		}
	}
}

func checkDurations(s *v1.WorkloadSpec, found *violations) {
	backoff, ok := readAmount("spec.restart.backoff", s.Restart.Backoff, ParseDuration, found)
	longest, okLongest := readAmount("spec.restart.maxBackoff", s.Restart.MaxBackoff, ParseDuration, found)
	if ok && backoff == 0 {
		found.add("spec.restart.backoff", "must be more than 0: it is doubled with each failure")
	}
	if ok && okLongest && backoff > longest {
		found.add("spec.restart.backoff", "must be at most maxBackoff: %s is longer than %s", FormatDuration(backoff), FormatDuration(longest))
	}
	readAmount("spec.restart.reset", s.Restart.Reset_, ParseDuration, found)
	readAmount("spec.stop.grace", s.Stop.Grace, ParseDuration, found)
}
