package image

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

const (
	// ClusterRegistry is the host name of the cluster's own registry, which an image name
	// without a registry means.
	ClusterRegistry = "registry.cloudless.internal"

	// DefaultTag is the tag of a name that has neither tag nor digest.
	DefaultTag = "latest"
)

// Name is a parsed image name in canonical form. Registry and Repository are always set,
// and at least one of Tag and Digest is.
type Name struct {
	Registry   string // host and, if given, port
	Repository string // the path in the registry, such as library/nginx
	Tag        string
	Digest     string // algorithm and value, such as sha256:9f86…
}

// ParseName reads [registry/]repository[:tag][@digest]. The first part is a registry if it
// has a dot or a colon or is localhost, as everywhere else. The only difference is that a
// missing registry means ClusterRegistry.
func ParseName(s string) (Name, error) {
	if n, ok := plainName(s); ok {
		return n, nil
	}
	return parseName(s)
}

// maxPlain is the longest word that plainName accepts as a repository; parseName refuses
// longer ones.
const maxPlain = 64

// plainName reads the commonest form, a word with or without a tag, faster.
func plainName(s string) (Name, bool) {
	word, tag, tagged := strings.Cut(s, ":")
	if !tagged {
		tag = DefaultTag
	}
	if word == "" || len(word) > maxPlain || tag == "" || len(tag) > maxPlain || strings.IndexByte(".-", tag[0]) >= 0 {
		return Name{}, false
	}
	for i := range len(word) {
		if c := word[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return Name{}, false
		}
	}
	for i := range len(tag) {
		c := tag[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("_.-", c) < 0 {
			return Name{}, false
		}
	}
	return Name{Registry: ClusterRegistry, Repository: word, Tag: tag}, true
}

func parseName(s string) (Name, error) {
	if err := checkSlips(s); err != nil {
		return Name{}, err
	}
	full := s
	if !hasRegistry(s) {
		full = ClusterRegistry + "/" + s
	}
	named, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return Name{}, nameError(s, reason(s, err))
	}
	n := Name{
		// Host names are case-insensitive, so two spellings must not be two registries.
		Registry:   strings.ToLower(reference.Domain(named)),
		Repository: reference.Path(named),
	}
	if tagged, ok := named.(reference.Tagged); ok {
		n.Tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		n.Digest = digested.Digest().String()
	}
	if n.Tag == "" && n.Digest == "" {
		n.Tag = DefaultTag
	}
	return n, nil
}

// String returns the full name, which ParseName reads back to the same Name.
func (n Name) String() string {
	var b strings.Builder
	b.WriteString(n.Registry + "/" + n.Repository)
	if n.Tag != "" {
		b.WriteString(":" + n.Tag)
	}
	if n.Digest != "" {
		b.WriteString("@" + n.Digest)
	}
	return b.String()
}

// Local reports whether the name points into the cluster's own registry.
func (n Name) Local() bool { return n.Registry == ClusterRegistry }

// Reference returns what to ask the registry for: the digest if the name has one, because a
// digest cannot move, and else the tag.
func (n Name) Reference() string {
	if n.Digest != "" {
		return n.Digest
	}
	return n.Tag
}

// Pinned returns the name of exactly the image with the given digest, without a tag.
func (n Name) Pinned(digest string) string {
	return n.Registry + "/" + n.Repository + "@" + digest
}

// Public returns the full name of the same image in the public registry: a suggestion when
// a local name does not exist.
func (n Name) Public() string {
	if !n.Local() {
		return n.String()
	}
	n.Registry = "docker.io"
	if !strings.Contains(n.Repository, "/") {
		n.Repository = "library/" + n.Repository
	}
	return n.String()
}

func hasRegistry(s string) bool {
	first, _, found := strings.Cut(s, "/")
	return found && (strings.ContainsAny(first, ".:") || strings.EqualFold(first, "localhost"))
}

// checkSlips catches common typing mistakes that the parser would only call an invalid
// format.
func checkSlips(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("the image name is empty: %s", nameForm)
	case strings.Contains(s, "://"):
		return nameError(s, "an image name has no URL scheme")
	case strings.ContainsAny(s, " \t\r\n"):
		return nameError(s, "an image name has no spaces")
	}
	return nil
}

const nameForm = "write it as [registry/]repository[:tag][@digest], for example hello:1 or docker.io/library/nginx:1.27"

func nameError(s, why string) error {
	// The precision keeps a pasted file out of the message.
	return fmt.Errorf("%.120q is not an image name, because %s: %s", s, why, nameForm)
}

// reason turns the parser's errors into words for people who do not know its grammar.
func reason(s string, err error) string {
	_, after, pinned := strings.Cut(s, "@")
	switch {
	case errors.Is(err, reference.ErrNameContainsUppercase), strings.Contains(err.Error(), "must be lowercase"):
		return "the repository has upper-case letters"
	case errors.Is(err, reference.ErrNameTooLong):
		return fmt.Sprintf("the repository has more than %d characters", reference.RepositoryNameTotalLengthMax)
	case pinned && digest.Digest(after).Validate() != nil:
		return "the part after @ is not a digest such as sha256 and 64 hexadecimal digits"
	default:
		return "it has characters or parts that image names cannot have"
	}
}
