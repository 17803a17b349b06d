package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	layoutFile = "oci-layout"
	indexFile  = "index.json"
	// maxJSON bounds a manifest or configuration in bytes.
	maxJSON = 8 << 20
)

// readLayout returns the one image or index of an OCI image layout.
func readLayout(files fs.FS) (Content, error) {
	raw, err := readSmall(files, indexFile)
	if err != nil {
		return nil, err
	}
	list, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("its %s is damaged: %w", indexFile, err)
	}
	top := &layoutIndex{files: files, raw: raw, list: list, mediaType: types.OCIImageIndex}
	switch {
	case len(list.Manifests) == 0:
		return nil, errors.New("it holds no image")
	case len(list.Manifests) == 1:
		return top.child(list.Manifests[0])
	}
	var names []string
	for _, d := range list.Manifests {
		if d.Platform == nil {
			names = append(names, d.Annotations["org.opencontainers.image.ref.name"])
		}
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("it holds %d images (%s): export the one that is meant alone", len(list.Manifests), strings.Join(names, ", "))
	}
	return top, nil // one image per platform
}

func readSmall(files fs.FS, name string) ([]byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s is missing in it: %w", name, err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return nil, fmt.Errorf("read its %s: %w", name, err)
	}
	if len(raw) > maxJSON {
		return nil, fmt.Errorf("its %s has more than %d bytes", name, maxJSON)
	}
	return raw, nil
}

func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// readBlob reads a manifest or configuration and checks its digest.
func readBlob(files fs.FS, h v1.Hash) ([]byte, error) {
	raw, err := readSmall(files, blobPath(h))
	if err != nil {
		return nil, err
	}
	if got, _, err := v1.SHA256(bytes.NewReader(raw)); err != nil || got != h {
		return nil, fmt.Errorf("%s in it is damaged: its digest is %s", h, got)
	}
	return raw, nil
}

// layoutIndex is a v1.ImageIndex in a layout.
type layoutIndex struct {
	files     fs.FS
	raw       []byte
	list      *v1.IndexManifest
	mediaType types.MediaType
}

var _ v1.ImageIndex = (*layoutIndex)(nil)

func (i *layoutIndex) MediaType() (types.MediaType, error)       { return i.mediaType, nil }
func (i *layoutIndex) IndexManifest() (*v1.IndexManifest, error) { return i.list, nil }
func (i *layoutIndex) RawManifest() ([]byte, error)              { return i.raw, nil }
func (i *layoutIndex) Size() (int64, error)                      { return int64(len(i.raw)), nil }

func (i *layoutIndex) Digest() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(i.raw))
	return h, err
}

func (i *layoutIndex) Image(h v1.Hash) (v1.Image, error) {
	content, err := i.named(h)
	if err != nil {
		return nil, err
	}
	img, ok := content.(v1.Image)
	if !ok {
		return nil, fmt.Errorf("%s is not an image", h)
	}
	return img, nil
}

func (i *layoutIndex) ImageIndex(h v1.Hash) (v1.ImageIndex, error) {
	content, err := i.named(h)
	if err != nil {
		return nil, err
	}
	index, ok := content.(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("%s is not an index", h)
	}
	return index, nil
}

func (i *layoutIndex) named(h v1.Hash) (Content, error) {
	for _, d := range i.list.Manifests {
		if d.Digest == h {
			return i.child(d)
		}
	}
	return nil, fmt.Errorf("%s is not in the index", h)
}

func (i *layoutIndex) child(d v1.Descriptor) (Content, error) {
	raw, err := readBlob(i.files, d.Digest)
	if err != nil {
		return nil, err
	}
	switch {
	case d.MediaType.IsIndex():
		list, err := v1.ParseIndexManifest(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("%s in it is damaged: %w", d.Digest, err)
		}
		return &layoutIndex{files: i.files, raw: raw, list: list, mediaType: d.MediaType}, nil
	case d.MediaType.IsImage():
		manifest, err := v1.ParseManifest(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("%s in it is damaged: %w", d.Digest, err)
		}
		return partial.CompressedToImage(&layoutImage{files: i.files, raw: raw, manifest: manifest, mediaType: d.MediaType})
	}
	return nil, fmt.Errorf("%s in it is neither an image nor an index but %.80q", d.Digest, d.MediaType)
}

// layoutImage is a partial.CompressedImageCore in a layout.
type layoutImage struct {
	files     fs.FS
	raw       []byte
	manifest  *v1.Manifest
	mediaType types.MediaType
}

func (i *layoutImage) MediaType() (types.MediaType, error) { return i.mediaType, nil }
func (i *layoutImage) RawManifest() ([]byte, error)        { return i.raw, nil }

func (i *layoutImage) RawConfigFile() ([]byte, error) {
	return readBlob(i.files, i.manifest.Config.Digest)
}

func (i *layoutImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, d := range i.manifest.Layers {
		if d.Digest == h {
			return &layoutLayer{i.files, d}, nil
		}
	}
	return nil, fmt.Errorf("%s is not a layer of the image", h)
}

// layoutLayer is a partial.CompressedLayer in a layout.
type layoutLayer struct {
	files fs.FS
	desc  v1.Descriptor
}

func (l *layoutLayer) Digest() (v1.Hash, error)            { return l.desc.Digest, nil }
func (l *layoutLayer) Size() (int64, error)                { return l.desc.Size, nil }
func (l *layoutLayer) MediaType() (types.MediaType, error) { return l.desc.MediaType, nil }

func (l *layoutLayer) Compressed() (io.ReadCloser, error) {
	f, err := l.files.Open(blobPath(l.desc.Digest))
	if err != nil {
		return nil, fmt.Errorf("layer %s is missing in it: %w", l.desc.Digest, err)
	}
	return f, nil
}

const savedFile = "manifest.json"

// readSaved returns the one image of an archive that docker save has written.
func readSaved(files *tarFiles) (Content, error) {
	raw, err := readSmall(files, savedFile)
	if err != nil {
		return nil, err
	}
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("its %s is damaged: %w", savedFile, err)
	}
	if len(list) != 1 {
		var names []string
		for _, one := range list {
			names = append(names, one.RepoTags...)
		}
		return nil, fmt.Errorf("it holds %d images (%s): save the one that is meant alone", len(list), strings.Join(names, ", "))
	}
	img := &savedImage{layers: map[v1.Hash]*savedLayer{}}
	if img.config, err = readSmall(files, list[0].Config); err != nil {
		return nil, err
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(img.config))
	if err != nil {
		return nil, fmt.Errorf("its configuration is damaged: %w", err)
	}
	if len(config.RootFS.DiffIDs) != len(list[0].Layers) {
		return nil, fmt.Errorf("it is damaged: it has %d layers, and its configuration names %d", len(list[0].Layers), len(config.RootFS.DiffIDs))
	}
	for i, id := range config.RootFS.DiffIDs {
		if _, err := files.section(list[0].Layers[i]); err != nil {
			return nil, err
		}
		img.layers[id] = &savedLayer{files, list[0].Layers[i], id}
	}
	return partial.UncompressedToImage(img)
}

// savedImage is a partial.UncompressedImageCore in an archive of docker save.
type savedImage struct {
	config []byte
	layers map[v1.Hash]*savedLayer
}

func (i *savedImage) MediaType() (types.MediaType, error) { return types.DockerManifestSchema2, nil }
func (i *savedImage) RawConfigFile() ([]byte, error)      { return i.config, nil }

func (i *savedImage) LayerByDiffID(h v1.Hash) (partial.UncompressedLayer, error) {
	layer, ok := i.layers[h]
	if !ok {
		return nil, fmt.Errorf("%s is not a layer of the image", h)
	}
	return layer, nil
}

// savedLayer is a partial.UncompressedLayer in an archive of docker save.
type savedLayer struct {
	files *tarFiles
	name  string
	id    v1.Hash
}

func (l *savedLayer) DiffID() (v1.Hash, error)            { return l.id, nil }
func (l *savedLayer) MediaType() (types.MediaType, error) { return types.DockerLayer, nil }

// Uncompressed also reads compressed layers, which other programs than docker write.
func (l *savedLayer) Uncompressed() (io.ReadCloser, error) {
	section, err := l.files.section(l.name)
	if err != nil {
		return nil, err
	}
	return gunzipped(section)
}
