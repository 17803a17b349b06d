package telemetry

import (
	"fmt"
	"io"
	"strings"
)

// WriteReference writes the catalogue as a page of the docs.
func WriteReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(referenceHead)
	b.WriteString("Only the leader has the usage of nodes and replicas, because the nodes report to it.\n")
	fmt.Fprintf(&b, "A scrape shows at most %d single replicas. The number of others is in\n`%s`.\n\n", MaxReplicas, ReplicasOmitted.Name)
	b.WriteString("| metric | type | unit | labels | of | meaning |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, m := range Catalogue() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", m.Name, m.Kind, m.Unit, strings.Join(m.Labels, ", "), m.From, m.Help)
	}
	b.WriteString(referenceTail)
	_, err := io.WriteString(w, b.String())
	return err
}

const referenceHead = `# Metrics

<!-- Written by "make docs" from the catalogue in the code. Do not edit. -->

Servers and agents export metrics in the Prometheus text format. Every scrape needs
an identity.

**A server**, and so ` + "`cloudless up`" + ` with its agent in the same process, answers at
` + "`/metrics`" + ` on its one port, to an API token of any role:

` + "```" + `
cloudless token create --role viewer --name prometheus --ttl 8760h
curl --cacert ca.pem -H "Authorization: Bearer $TOKEN" https://127.0.0.1:7700/metrics
` + "```" + `

Prometheus needs the same two things:

` + "```yaml" + `
scrape_configs:
  - job_name: cloudless
    scheme: https
    authorization: {credentials_file: /etc/prometheus/cloudless-token}
    tls_config: {ca_file: /etc/prometheus/cloudless-ca.pem}
    static_configs: [{targets: ["127.0.0.1:7700"]}]
` + "```" + `

The authority's certificate is the ` + "`ca`" + ` of the context in the client configuration.

**An agent alone** listens on no port, so there is nothing for Prometheus to scrape. What its
replicas use reaches the leader with the heartbeats and is part of the leader's metrics.
The agent's own metrics are on a socket that only its user can open (mode 0600),
` + "`metrics.sock`" + ` in the run folder ` + "`/run/cloudless/ID`" + `, where ID is the ` + "`id`" + ` in
` + "`cloud.json`" + ` of the data folder:

` + "```" + `
curl --unix-socket /run/cloudless/ID/metrics.sock http://agent/metrics
` + "```" + `

`

const referenceTail = `
In addition there are the metrics of the Go runtime (` + "`go_*`" + `) and of the process (` + "`process_*`" + `).
`
