package doctor

import (
	"compress/gzip"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// maxChangelog is how much of a changelog is read.
const maxChangelog = 16 << 20

var cvePattern = regexp.MustCompile(`CVE-\d{4}-\d{4,7}`)

// lookPackage finds the package of a distribution that a program is from, and which CVEs its changelog names.
func (r *Runc) lookPackage(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, path := range []string{r.Path, realPath(r.Path)} {
		if r.lookDeb(ctx, path) || r.lookRPM(ctx, path) {
			return
		}
	}
}

func realPath(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return real
}

func (r *Runc) lookDeb(ctx context.Context, path string) bool {
	owner, err := exec.CommandContext(ctx, "dpkg-query", "-S", path).Output()
	name, _, found := strings.Cut(string(owner), ":")
	if err != nil || !found {
		return false
	}
	version, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", name).Output()
	if err != nil || len(version) == 0 {
		return false
	}
	r.Package = strings.TrimSpace(string(version))
	for _, file := range []string{"changelog.Debian.gz", "changelog.gz"} {
		if text, err := unzipped(filepath.Join("/usr/share/doc", name, file)); err == nil {
			r.Patched, r.ChangelogRead = cves(text), true
			break
		}
	}
	return true
}

func (r *Runc) lookRPM(ctx context.Context, path string) bool {
	version, err := exec.CommandContext(ctx, "rpm", "-qf", "--qf", "%{VERSION}-%{RELEASE}", path).Output()
	if err != nil || len(version) == 0 {
		return false
	}
	r.Package = strings.TrimSpace(string(version))
	if text, err := exec.CommandContext(ctx, "rpm", "-qf", "--changelog", path).Output(); err == nil && len(text) > 0 {
		r.Patched, r.ChangelogRead = cves(string(text[:min(len(text), maxChangelog)])), true
	}
	return true
}

func unzipped(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	reader, err := gzip.NewReader(file)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(reader, maxChangelog))
	return string(text), err
}

// cves are those that a changelog names, once each.
func cves(changelog string) []string {
	found := cvePattern.FindAllString(changelog, -1)
	slices.Sort(found)
	return slices.Compact(found)
}
