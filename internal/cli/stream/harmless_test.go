package stream

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/cloudless/cloudless/client"
)

// On a terminal, a line of a replica cannot pretend to be one of another replica. Elsewhere, and with --raw, it is as the
// program printed it.
func TestLinesCannotDisguiseThemselves(t *testing.T) {
	line := client.LogLine{Replica: "web-1", Line: []byte("ok\r\x1b[2Kweb-2 | \x1b[31mfailed")}
	for harmless, want := range map[bool]string{
		true:  "web-1 | ok^M^[[2Kweb-2 | \x1b[31mfailed\x1b[0m\n",
		false: "web-1 | ok\r\x1b[2Kweb-2 | \x1b[31mfailed\n",
	} {
		var out bytes.Buffer
		p := &logPrinter{out: bufio.NewWriter(&out), prefix: true, harmless: harmless}
		if err := p.print(line); err != nil {
			t.Fatal(err)
		}
		if err := p.out.Flush(); err != nil || out.String() != want {
			t.Errorf("harmless %t: %q, want %q, %v", harmless, out.String(), want, err)
		}
	}
}
