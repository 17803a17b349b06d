package local

import (
	"context"
	"errors"
	"testing"

	"github.com/cloudless/cloudless/internal/doctor"
)

func TestDoctorReportsItsFindings(t *testing.T) {
	found := []doctor.Finding{
		{Check: "kernel", Level: doctor.OK, Text: "Linux 6"},
		{Check: "forwarding", Level: doctor.Warn, Text: "is off", Mend: "sysctl -w x=1"},
	}
	var asked DoctorOptions
	roles := Roles{Doctor: func(_ context.Context, o DoctorOptions) ([]doctor.Finding, error) {
		asked = o
		return found, nil
	}}
	args := []string{"doctor", "--data-dir", "/d", "--config", "/c", "--port", "53/udp", "--context", "home"}
	runLocal(t.Context(), roles, args...).expect(t, 0,
		"ok    kernel      Linux 6\n"+
			"warn  forwarding  is off\n"+
			"                  fix with: sysctl -w x=1\n"+
			"\nnothing fails; 1 of 2 checks warn\n", "")
	if asked.DataDir != "/d" || asked.ConfigPath != "/c" || asked.Context != "home" || asked.APIAddr != "" || asked.Ports[0] != "53/udp" {
		t.Errorf("asked for %+v", asked)
	}
	runLocal(t.Context(), roles, append(args, "-o", "json")...).expect(t, 0,
		"{\n  \"level\": \"warn\",\n  \"items\": [\n    {\n      \"check\": \"kernel\",\n      \"level\": \"ok\",\n      \"text\": \"Linux 6\"\n    },\n"+
			"    {\n      \"check\": \"forwarding\",\n      \"level\": \"warn\",\n      \"text\": \"is off\",\n      \"mend\": \"sysctl -w x=1\"\n    }\n  ]\n}\n", "")
	t.Setenv(DataDirEnv, "/from/environment")
	runLocal(t.Context(), roles, "doctor", "-o", "json")
	if asked.DataDir != "/from/environment" {
		t.Errorf("asked for %+v", asked)
	}
	found[1].Level = doctor.Fail
	runLocal(t.Context(), roles, args...).expect(t, 1,
		"ok    kernel      Linux 6\n"+
			"fail  forwarding  is off\n"+
			"                  fix with: sysctl -w x=1\n"+
			"\n1 of 2 checks fail, 0 warn\n", "")
	found = found[:1]
	runLocal(t.Context(), roles, args...).expect(t, 0, "ok  kernel  Linux 6\n\nthis machine has what it needs\n", "")
}

func TestDoctorRefusesWhatItCannotLookAt(t *testing.T) {
	roles := Roles{Doctor: func(context.Context, DoctorOptions) ([]doctor.Finding, error) {
		return nil, errors.New("never asked")
	}}
	for _, port := range []string{"0", "65536", "http", "80/sctp", "/udp", "-1", ""} {
		if got := runLocal(t.Context(), roles, "doctor", "--port="+port); got.code != 2 {
			t.Errorf("port %q: %+v", port, got)
		}
	}
	if got := runLocal(t.Context(), roles, "doctor", "--api-addr", "nowhere"); got.code != 2 {
		t.Errorf("%+v", got)
	}
}
