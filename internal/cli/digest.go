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

// byDigest matches an image by the beginning of its digest or all of it, with its
// repository or without: web@sha256:0123456789ab, web@0123456789ab, sha256:0123456789ab.
var byDigest = regexp.MustCompile(`^(?:(.+)@(?:sha256:)?|sha256:)([0-9a-f]{6,64})$`)

// wholeDigest matches an image that is named by its repository and its whole digest.
var wholeDigest = regexp.MustCompile(`.@sha256:[0-9a-f]{64}$`)

// wholeImage completes a digest that was shortened as tables do it, or that lacks its
// repository, and leaves every other name of an image as it is.
func wholeImage(ctx context.Context, cl *client.Client, name string) (string, error) {
	parts := byDigest.FindStringSubmatch(name)
	if parts == nil || wholeDigest.MatchString(name) {
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
	way := "give more of the digest"
	if sameDigest(found) {
		way = "name the repository, such as " + found[0]
	}
	return "", fmt.Errorf("%s may be any of %s: %s", name, strings.Join(found, ", "), way)
}

// sameDigest reports whether images differ only in their repositories.
func sameDigest(images []string) bool {
	_, first, _ := strings.Cut(images[0], "@")
	return !slices.ContainsFunc(images, func(image string) bool { return !strings.HasSuffix(image, "@"+first) })
}

// untagged is a repository without the tag that may follow it.
func untagged(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i]
	}
	return name
}
