package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/client"
)

// shortDigest is enough of a digest for people to tell images apart.
func shortDigest(digest string) string {
	algorithm, value, found := strings.Cut(digest, ":")
	if !found || len(value) <= 12 {
		return digest
	}
	return algorithm + ":" + value[:12]
}

// shortened matches an image by a digest that is not whole, with its repository or
// without: web@sha256:0123456789ab, web@0123456789ab, sha256:0123456789ab.
var shortened = regexp.MustCompile(`^(?:(.+)@(?:sha256:)?|sha256:)([0-9a-f]{6,63})$`)

// wholeImage completes a digest that was shortened as tables do it, and leaves every
// other name of an image as it is.
func wholeImage(ctx context.Context, cl *client.Client, name string) (string, error) {
	parts := shortened.FindStringSubmatch(name)
	if parts == nil {
		return name, nil
	}
	images, err := listImages(ctx, cl, true)
	if err != nil {
		return "", err
	}
	var found []string
	for _, image := range images {
		s := image.GetStatus()
		if _, value, _ := strings.Cut(s.GetDigest(), ":"); strings.HasPrefix(value, parts[2]) && (parts[1] == "" || s.GetRepository() == untagged(parts[1])) {
			whole := s.GetRepository() + "@" + s.GetDigest()
			if !slices.Contains(found, whole) {
				found = append(found, whole)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("there is no image whose digest begins as in %s: see cloudless image ls, or give the whole digest", name)
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	return "", fmt.Errorf("%s may be any of %s: give more of the digest", name, strings.Join(found, ", "))
}

// untagged is a repository without the tag that may follow it.
func untagged(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i]
	}
	return name
}
