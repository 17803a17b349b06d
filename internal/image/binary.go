package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Options say how an image's program is started. The zero value starts the program without
// arguments.
type Options struct {
	Args []string          // default arguments, which a workload may replace
	Env  map[string]string // default environment
}

// FromBinary returns an image with one layer that holds the static Linux program at path as
// /<file name>, beside /tmp and the accounts root and nobody. The file must not change
// while the image is used, because its layer is read from there.
func FromBinary(path string, opts Options) (v1.Image, error) {
	env, err := environment(opts.Env)
	if err != nil {
		return nil, err
	}
	p, err := inspect(path)
	if err != nil {
		return nil, err
	}
	l, err := newLayer(p)
	if err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", path, err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{
		Layer:   l,
		History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "cloudless"},
	})
	if err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", path, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", path, err)
	}
	config = config.DeepCopy()
	config.Created = v1.Time{Time: epoch}
	config.OS, config.Architecture, config.Variant = p.platform.OS, p.platform.Architecture, p.platform.Variant
	config.Config = v1.Config{
		Entrypoint: []string{"/" + p.name},
		Cmd:        opts.Args,
		Env:        env,
		WorkingDir: "/",
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", path, err)
	}
	return img, nil
}

// environment returns the variables in a fixed order, because the order is part of the
// digest. PATH is where the program is, unless set otherwise.
func environment(vars map[string]string) ([]string, error) {
	all := map[string]string{"PATH": "/"}
	maps.Copy(all, vars)
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, fmt.Errorf("%q cannot be the name of an environment variable: it must not be empty nor contain an equals sign", name)
		}
		env = append(env, name+"="+all[name])
	}
	return env, nil
}
