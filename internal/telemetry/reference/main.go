// Command reference writes docs/metrics.md from the catalogue of metrics.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"

	"github.com/cloudless/cloudless/internal/telemetry"
)

func main() {
	out := flag.String("o", "docs/metrics.md", "`file` to write")
	flag.Parse()
	var page bytes.Buffer
	err := telemetry.WriteReference(&page)
	if err == nil {
		err = os.WriteFile(*out, page.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "write the reference of metrics:", err)
		os.Exit(1)
	}
}
