package mesh

import (
	"testing"
	"time"
)

func TestMeterMeasuresOncePerWindow(t *testing.T) {
	var m meter
	now := time.Unix(1000, 0)
	m.sample(now, 100, 1000)
	if m.sentRate != 0 || m.receivedRate != 0 {
		t.Errorf("one sample gives rates of %d and %d", m.sentRate, m.receivedRate)
	}
	m.sample(now.Add(meterWindow/2), 500_000, 500_000) // within the window
	m.sample(now.Add(2*meterWindow), 100+4000, 1000+8000)
	if m.sentRate != 1000 || m.receivedRate != 2000 {
		t.Errorf("the rates are %d and %d", m.sentRate, m.receivedRate)
	}
	m.sample(now.Add(3*meterWindow), 100+4000, 1000+8000)
	if m.sentRate != 0 || m.receivedRate != 0 {
		t.Errorf("without traffic the rates are %d and %d", m.sentRate, m.receivedRate)
	}
}
