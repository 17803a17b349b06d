package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// readFiles reads and checks all documents before any of them is used.
func (c *cli) readFiles(cmd *cobra.Command, files []string) ([]*cloudlessv1.Workload, error) {
	files, err := unfold(files)
	if err != nil {
		return nil, err
	}
	var workloads []*cloudlessv1.Workload
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
			workload, err := c.documentWorkload(cmd, at, document)
			if err != nil {
				return nil, err
			}
			name := pathOf(workload.GetMetadata())
			if other, twice := first[name]; twice {
				return nil, fmt.Errorf("%s: workload %s is given twice, first at %s: leave one of them out", at, name, other)
			}
			first[name] = at
			workloads = append(workloads, workload)
		}
	}
	if len(workloads) == 0 {
		return nil, errors.New("there is nothing to apply: the input holds no document")
	}
	return workloads, nil
}

func (c *cli) documentWorkload(cmd *cobra.Command, at string, document spec.Document) (*cloudlessv1.Workload, error) {
	workload, ok := document.Message.(*cloudlessv1.Workload)
	if !ok {
		return nil, fmt.Errorf("%s: a %s cannot be applied: only a Workload can", at, document.Kind)
	}
	given := workload.GetMetadata().GetNamespace()
	if given != "" && given != c.namespace && cmd.Flags().Changed("namespace") {
		return nil, fmt.Errorf("%s: workload %s is of namespace %s, but --namespace says %s: leave one of them out",
			at, workload.GetMetadata().GetName(), given, c.namespace)
	}
	if given == "" {
		workload.Metadata.Namespace = c.namespace
	}
	return workload, nil
}

// pathOf is an object's namespace and name.
func pathOf(m *cloudlessv1.Metadata) string { return m.GetNamespace() + "/" + m.GetName() }

// unfold puts the files of a folder in its place, by name. Folders in it are left alone.
func unfold(files []string) ([]string, error) {
	var all []string
	for _, file := range files {
		info, err := os.Stat(file)
		if file == "-" || err != nil || !info.IsDir() { // what cannot be read is told when it is read
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
