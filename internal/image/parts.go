package image

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Content is an image for one platform (v1.Image) or an index of several (v1.ImageIndex).
type Content interface {
	MediaType() (types.MediaType, error)
	Digest() (v1.Hash, error)
	RawManifest() ([]byte, error)
}

// parts is everything that a registry must have of an image or index.
type parts struct {
	digest    string
	blobs     []blob
	manifests []manifest // what is named comes before what names it
}

type blob struct {
	digest string
	size   int64
	open   func() (io.ReadCloser, error)
}

type manifest struct {
	digest    string
	mediaType string
	raw       []byte
}

func takeApart(what Content) (parts, error) {
	var p parts
	if err := p.add(what, 0); err != nil {
		return parts{}, err
	}
	p.digest = p.manifests[len(p.manifests)-1].digest
	return p, nil
}

// maxNesting is how deep indexes may be nested.
const maxNesting = 4

func (p *parts) add(what Content, depth int) error {
	switch what := what.(type) {
	case v1.Image:
		if err := p.addImage(what); err != nil {
			return err
		}
	case v1.ImageIndex:
		if depth == maxNesting {
			return fmt.Errorf("the index holds indexes more than %d deep", maxNesting)
		}
		if err := p.addIndex(what, depth); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%T is neither an image nor an index", what)
	}
	return p.addManifest(what)
}

func (p *parts) addManifest(what Content) error {
	digest, err := what.Digest()
	if err != nil {
		return fmt.Errorf("compute the digest: %w", err)
	}
	mediaType, err := what.MediaType()
	if err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	raw, err := what.RawManifest()
	if err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	if !slices.ContainsFunc(p.manifests, func(m manifest) bool { return m.digest == digest.String() }) {
		p.manifests = append(p.manifests, manifest{digest.String(), string(mediaType), raw})
	}
	return nil
}

func (p *parts) addImage(img v1.Image) error {
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("read the layers: %w", err)
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return fmt.Errorf("read a layer: %w", err)
		}
		size, err := l.Size()
		if err != nil {
			return fmt.Errorf("read layer %s: %w", digest, err)
		}
		p.addBlob(blob{digest.String(), size, l.Compressed})
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	name, err := img.ConfigName()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	p.addBlob(blob{name.String(), int64(len(config)), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(config)), nil
	}})
	return nil
}

func (p *parts) addBlob(b blob) {
	if !slices.ContainsFunc(p.blobs, func(other blob) bool { return other.digest == b.digest }) {
		p.blobs = append(p.blobs, b)
	}
}

func (p *parts) addIndex(index v1.ImageIndex, depth int) error {
	list, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("read the index: %w", err)
	}
	for _, d := range list.Manifests {
		var child Content
		switch {
		case d.MediaType.IsIndex():
			child, err = index.ImageIndex(d.Digest)
		case d.MediaType.IsImage():
			child, err = index.Image(d.Digest)
		default:
			err = fmt.Errorf("its type is %.80q", d.MediaType)
		}
		if err != nil {
			return fmt.Errorf("the index names %s, which cannot be read: %w", d.Digest, err)
		}
		if err := p.add(child, depth+1); err != nil {
			return fmt.Errorf("read %s: %w", d.Digest, err)
		}
	}
	return nil
}
