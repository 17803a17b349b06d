package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

func TestValidRequestIDOfTheCallerIsKept(t *testing.T) {
	for requested, taken := range map[string]bool{
		"abc-DEF_1.2:3":              true,
		strings.Repeat("x", 64):      true,
		"":                           false,
		strings.Repeat("x", 65):      false,
		"with space":                 false,
		"line\nbreak":                false,
		"ümlaut":                     false,
		`quote"`:                     false,
		"\x1b[31mred":                false,
		"../../etc":                  false,
		"id=1 level=ERROR msg=forge": false,
	} {
		ctx, id := WithRequestID(context.Background(), requested)
		if (id == requested) != taken || id == "" || RequestID(ctx) != id || !sane(id) {
			t.Errorf("of %q became %q", requested, id)
		}
	}
	_, one := WithRequestID(context.Background(), "")
	_, other := WithRequestID(context.Background(), "")
	if one == other {
		t.Errorf("two calls have the id %s", one)
	}
	if RequestID(context.Background()) != "" {
		t.Error("there is an id outside of calls")
	}
}

func FuzzRequestID(f *testing.F) {
	f.Add("abc")
	f.Add("a b\n")
	f.Fuzz(func(t *testing.T, requested string) {
		_, id := WithRequestID(context.Background(), requested)
		if id == "" || len(id) > maxRequestID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("of %q became %q", requested, id)
		}
	})
}

func TestLogLinesHaveTheRequestID(t *testing.T) {
	var out bytes.Buffer
	log := NewLogger(&out, slog.LevelInfo, LogJSON)
	ctx, _ := WithRequestID(context.Background(), "abc")
	log.With("part", "x").WithGroup("g").InfoContext(ctx, "hello", "key", "value")
	log.DebugContext(ctx, "too quiet")
	log.Info("outside")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("logged %q", lines)
	}
	var line struct {
		Msg, Part string
		G         map[string]string
	}
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil {
		t.Fatal(err)
	}
	if line.Msg != "hello" || line.Part != "x" || line.G["key"] != "value" || line.G["request"] != "abc" {
		t.Errorf("logged %s", lines[0])
	}
	if strings.Contains(lines[1], "request") {
		t.Errorf("a line outside of calls is %s", lines[1])
	}
	out.Reset()
	NewLogger(&out, slog.LevelInfo, LogText).InfoContext(ctx, "hello")
	if !strings.Contains(out.String(), "msg=hello request=abc") {
		t.Errorf("as text it is %s", out.String())
	}
	if _, err := ParseLogFormat("xml"); err == nil || !strings.Contains(err.Error(), "use text or json") {
		t.Errorf("xml is refused with %v", err)
	}
}
