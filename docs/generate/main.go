// Command generate makes the pages and pictures of the documentation that follow from code or templates: make docs.
// A test checks that they are up to date.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/cli"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// pages are the generated files, by name.
var pages = map[string]func() (string, error){
	"cli.md":           func() (string, error) { return cli.Reference(), nil },
	"api.md":           func() (string, error) { return apiReference(api.OpenAPI) },
	"configuration.md": func() (string, error) { return configurationReference(api.OpenAPI) },
	"metrics.md": func() (string, error) {
		var page strings.Builder
		err := telemetry.WriteReference(&page)
		return page.String(), err
	},
	"parts-light.svg":  func() (string, error) { return partsPicture(light) },
	"parts-dark.svg":   func() (string, error) { return partsPicture(dark) },
	"packet-light.svg": func() (string, error) { return packetPicture(light) },
	"packet-dark.svg":  func() (string, error) { return packetPicture(dark) },
	"recording.svg":    func() (string, error) { return recordingPicture(recording), nil },
}

func main() {
	dir := flag.String("dir", "docs", "folder of the documentation")
	flag.Parse()
	if err := generate(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(dir string) error {
	for name, page := range pages {
		text, err := page()
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
