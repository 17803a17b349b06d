package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/spec"
)

// readFiles reads and checks all documents before any of them is used.
func (c *cli) readFiles(cmd *cobra.Command, files []string) (*cloudlessv1.PlanRequest, error) {
	files, err := unfold(files)
	if err != nil {
		return nil, err
	}
	request := &cloudlessv1.PlanRequest{}
	first := map[string]string{}
	for _, file := range files {
		data, err := c.readFile(file)
		if err != nil {
			return nil, err
		}
		documents, err := spec.Decode(file, data)
		if err != nil {
			return nil, err
		}
		for _, document := range documents {
			at := fmt.Sprintf("%s:%d", file, document.Line)
			name, err := c.addDocument(cmd, request, at, document)
			if err != nil {
				return nil, err
			}
			if other, twice := first[name]; twice {
				return nil, fmt.Errorf("%s: %s is given twice, first at %s: leave one of them out", at, name, other)
			}
			first[name] = at
		}
	}
	if len(request.GetObjects()) == 0 {
		return nil, errors.New("there is nothing to apply: the input holds no document")
	}
	return request, nil
}

// addDocument adds a document's object to a request, and returns the object's kind and name.
func (c *cli) addDocument(cmd *cobra.Command, request *cloudlessv1.PlanRequest, at string, document spec.Document) (string, error) {
	manifest, object := spec.ManifestOf(document.Message), document.Message.(client.Object)
	if manifest == nil {
		return "", fmt.Errorf("%s: a %s cannot be applied", at, document.Kind)
	}
	request.Objects = append(request.Objects, manifest)
	kind, _ := api.KindOf(document.Kind)
	noun, m := kind.Noun(), object.GetMetadata()
	if !kind.Namespaced {
		return noun + " " + m.GetName(), nil
	}
	if given := m.GetNamespace(); given != "" && given != c.Namespace && cmd.Flags().Changed("namespace") {
		return "", fmt.Errorf("%s: %s %s is of namespace %s, but --namespace says %s: leave one of them out", at, noun, m.GetName(), given, c.Namespace)
	}
	if m.GetNamespace() == "" {
		m.Namespace = c.Namespace
	}
	return noun + " " + phrase.Path(m), nil
}

// unfold replaces a folder by the files in it, sorted by name, without subfolders.
func unfold(files []string) ([]string, error) {
	var all []string
	for _, file := range files {
		info, err := os.Stat(file)
		if file == "-" || err != nil || !info.IsDir() { // readFile reports a file that cannot be read
			all = append(all, file)
			continue
		}
		entries, err := os.ReadDir(file)
		if err != nil {
			return nil, fmt.Errorf("read the folder of workloads: %w", err)
		}
		found := false
		for _, entry := range entries {
			if !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
				all, found = append(all, filepath.Join(file, entry.Name())), true
			}
		}
		if !found {
			return nil, fmt.Errorf("folder %s holds no file that ends in .yaml, .yml or .json", file)
		}
	}
	return all, nil
}

func (c *cli) readFile(file string) ([]byte, error) {
	from := c.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the file: %w", err)
		}
		defer f.Close()
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, spec.MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(data) > spec.MaxFileSize {
		return nil, fmt.Errorf("%s has more than the %d MB that a file of workloads may have: split it into several files, and put large contents into the image",
			file, spec.MaxFileSize>>20)
	}
	return data, nil
}
