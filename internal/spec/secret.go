package spec

import (
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// What happens in a running replica when the file of a secret has changed.
const (
	OnChangeNone    = "none"
	OnChangeSignal  = "signal"
	OnChangeRestart = "restart"
)

const (
	defaultSecretMode   = "0400"
	defaultSecretSignal = "SIGHUP"
)

// folders cannot become folders of secrets, because programs need what else is in them.
var folders = []string{"/", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/var", "/run", "/tmp", "/root", "/home", "/opt"}

// kernelFolders have the files of the kernel below them.
var kernelFolders = []string{"/proc", "/sys", "/dev"}

// normalSecrets fills in what the file of a secret looks like.
func normalSecrets(refs []*v1.SecretRef) {
	for _, r := range refs {
		if r == nil || r.Path == "" {
			continue
		}
		if fill(&r.Mode, defaultSecretMode); len(r.Mode) == 3 {
			r.Mode = "0" + r.Mode
		}
		if fill(&r.OnChange, OnChangeNone); r.OnChange == OnChangeSignal {
			fill(&r.Signal, defaultSecretSignal)
		}
	}
}

// NormalSecret is the spec of a secret in canonical form.
func NormalSecret(s *v1.SecretSpec) *v1.SecretSpec {
	c := proto.CloneOf(s)
	slices.Sort(c.Audience)
	c.Audience = slices.Compact(c.Audience)
	normalDuration(&c.Ttl, "")
	return c
}

// checkSecrets gets what the author wrote and its canonical form.
func checkSecrets(written, s *v1.WorkloadSpec, found *violations) {
	variables, files := map[string]int{}, []int(nil)
	for i, r := range s.GetSecrets() {
		at := indexPath("spec.secrets", i)
		if r.GetEnv() == "" && r.GetPath() == "" {
			found.add(at, "says not how the program gets secret %s: give env, the name of a variable, or path, the path of a file", r.GetName())
		}
		if env := r.GetEnv(); env != "" {
			if first, taken := variables[env]; taken {
				found.add(at+".env", "%s is the variable of %s too", env, indexPath("spec.secrets", first))
			} else if _, taken := s.GetEnv()[env]; taken {
				found.add(at+".env", "%s is set in spec.env too; leave it out there", env)
			}
			variables[env] = i
		}
		if r.GetPath() == "" {
			checkNoFile(at, written.GetSecrets()[i], found)
			continue
		}
		checkSecretFile(at, r, found)
		for _, other := range files {
			if words := nested(r.GetPath(), s.GetSecrets()[other].GetPath(), indexPath("spec.secrets", other)); words != "" {
				found.add(at+".path", "%s", words)
				break
			}
		}
		files = append(files, i)
	}
}

// checkNoFile refuses settings of a file that is not there.
func checkNoFile(at string, r *v1.SecretRef, found *violations) {
	for _, f := range []struct{ name, value string }{
		{"mode", r.GetMode()}, {"owner", r.GetOwner()}, {"onChange", r.GetOnChange()}, {"signal", r.GetSignal()},
	} {
		if f.value != "" {
			found.add(at+"."+f.name, "is for a file: give path too, or leave it out")
		}
	}
}

func checkSecretFile(at string, r *v1.SecretRef, found *violations) {
	file := r.GetPath()
	folder := path.Dir(file)
	switch {
	case strings.ContainsFunc(file, func(c rune) bool { return c < ' ' || c == 0x7f }):
		found.add(at+".path", "has a control character, which no path of a secret may have")
	case !path.IsAbs(file) || path.Clean(file) != file || file == "/":
		found.add(at+".path", "%q must be the absolute path of a file, without \".\", \"..\" and double or final slashes, such as /run/secrets/%s", file, r.GetName())
	case slices.ContainsFunc(kernelFolders, func(k string) bool { return below(file, k) }):
		found.add(at+".path", "%s is among the files of the kernel; choose a path such as /run/secrets/%s", file, r.GetName())
	case slices.Contains(folders, folder):
		found.add(at+".path", "would replace %s: the folder of a secret holds secrets only; choose a folder of its own, such as /run/secrets/%s", folder, r.GetName())
	}
	if r.GetSignal() != "" && r.GetOnChange() != OnChangeSignal {
		found.add(at+".signal", "is for onChange signal; say so, or leave it out")
	}
}

// nested says why a file cannot be beside another one, which has a name. The folder of a secret is a file system of its
// own, and none is inside of another.
func nested(file, other, name string) string {
	folder, otherFolder := path.Dir(file), path.Dir(other)
	switch {
	case file == other:
		return "is the path of " + name + " too"
	case below(file, other) || below(other, file):
		return "cannot be a folder and a file at once: see the path of " + name
	case folder != otherFolder && (below(folder, otherFolder) || below(otherFolder, folder)):
		return "and that of " + name + " are in folders of which one is inside of the other; put both into one folder, or into folders beside each other"
	}
	return ""
}

// below reports whether a path is a folder or below it.
func below(file, folder string) bool {
	return file == folder || strings.HasPrefix(file, strings.TrimSuffix(folder, "/")+"/")
}
