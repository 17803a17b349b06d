package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A setting is one value of the configuration, named by a key: the path of its field, such
// as liveness.silence. Keys of a node class include its name:
// nodeClasses.laptops.liveness.reconnect.

// Setting is an effective value.
type Setting struct {
	Key, Value string
	// Default is set if the configuration does not set it.
	Default bool
}

// UnknownSettingError refuses an unknown key.
type UnknownSettingError struct {
	Key string
	// Known are the existing keys.
	Known []string
}

func (e *UnknownSettingError) Error() string { return fmt.Sprintf("%q is not a setting", e.Key) }

// notSet stands for a missing value without a default.
const notSet = "none"

// settingDefaults are the default values of settings. Others have none.
var settingDefaults = map[string]string{
	"desiredVoters":               strconv.Itoa(defaultVoters),
	"liveness.heartbeat":          FormatDuration(DefaultLiveness.Heartbeat),
	"liveness.silence":            FormatDuration(DefaultLiveness.Silence),
	"liveness.reconnect":          FormatDuration(DefaultLiveness.Reconnect),
	"retention.replicas":          FormatDuration(defaultRetention.Replicas),
	"retention.events":            FormatDuration(defaultRetention.Events),
	"retention.maxEvents":         strconv.Itoa(defaultMaxEvents),
	"retention.revisions":         strconv.Itoa(defaultRevisions),
	"retention.tokens":            FormatDuration(defaultRetention.Tokens),
	"retention.images":            FormatDuration(defaultRetention.Images),
	"defaults.restart.policy":     defaultPolicy,
	"defaults.restart.backoff":    defaultBackoff,
	"defaults.restart.maxBackoff": defaultMaxBackoff,
	"defaults.restart.reset":      defaultReset,
	"defaults.stop.signal":        defaultSignal,
	"defaults.stop.grace":         defaultGrace,
	"overcommit.cpu":              defaultOvercommit,
	"overcommit.memory":           defaultOvercommit,
	"overcommit.disk":             defaultOvercommit,
	"overcommit.bandwidth":        defaultOvercommit,
	"weights.locality":            "0.25",
	"weights.reliability":         "0.3",
	"weights.cost":                "0.15",
	"weights.utilization":         "0.2",
	"weights.network":             "0.1",
	"failover.per":                FormatDuration(defaultPer),
	"rebalance.enabled":           "false",
	"rebalance.minGain":           "0.1",
	"rebalance.replicas":          strconv.Itoa(defaultMoves),
	"rebalance.per":               FormatDuration(defaultMovesPer),
	"rebalance.rest":              FormatDuration(defaultRest),
	"acme.directory":              LetsEncrypt,
	"ingress.httpPort":            strconv.Itoa(DefaultHTTPPort),
	"ingress.httpsPort":           strconv.Itoa(DefaultHTTPSPort),
	"security.maxUnpackedImage":   FormatBytes(defaultUnpacked),
	"security.imageHighPercent":   strconv.Itoa(defaultHighPercent),
	"security.maxWritableLayer":   FormatBytes(defaultWritable),
	"oidc.usernameClaim":          EmailClaim,
	"oidc.groupsClaim":            defaultGroupsClaim,
	"oidc.scopes":                 "email,profile",
	"oidc.session":                FormatDuration(defaultSession),
	"limits.nodes":                strconv.Itoa(maxNodes),
	"limits.workloads":            strconv.Itoa(maxWorkloads),
	"limits.replicasPerWorkload":  strconv.Itoa(maxReplicas),
}

// SettingDefault is the default value of a setting, empty if it has none.
func SettingDefault(key string) string { return settingDefaults[key] }

// classKey begins the keys of node classes.
const classKey = "nodeClasses"

// Settings lists every setting with its effective value, in the order of the API.
func Settings(c *v1.ClusterSpec) []Setting {
	var all []Setting
	m, defaults := NormalizedCluster(c).ProtoReflect(), maps.Clone(settingDefaults)
	if v4, v6 := ServiceRanges(c); v4.IsValid() && v6.IsValid() { // those of a configuration from an older release
		defaults["serviceRangeV4"], defaults["serviceRangeV6"] = v4.String(), v6.String()
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.JSONName() == classKey {
			for _, class := range c.GetNodeClasses() {
				all = appendClass(all, c, class)
			}
			continue
		}
		all = appendSettings(all, f.JSONName(), m, f, defaults)
	}
	return all
}

func appendSettings(all []Setting, key string, m protoreflect.Message, f protoreflect.FieldDescriptor, defaults map[string]string) []Setting {
	switch {
	case f.IsMap():
		return appendEntries(all, key, m.Get(f).Map())
	case f.IsList() && m.Has(f):
		return append(all, Setting{Key: key, Value: listText(m.Get(f).List())})
	case f.IsList():
	case f.Message() != nil:
		below, fields := m.Get(f).Message(), f.Message().Fields()
		for i := range fields.Len() {
			all = appendSettings(all, key+"."+fields.Get(i).JSONName(), below, fields.Get(i), defaults)
		}
		return all
	}
	if m.Has(f) {
		return append(all, Setting{Key: key, Value: text(m.Get(f))})
	}
	return append(all, Setting{Key: key, Value: cmp.Or(defaults[key], notSet), Default: true})
}

// appendEntries adds one setting for each entry of a map, by key.
func appendEntries(all []Setting, key string, m protoreflect.Map) []Setting {
	values := map[string]string{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		values[k.String()] = text(v)
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, Setting{Key: key + "." + name, Value: values[name]})
	}
	return all
}

// listText is a list as one setting: its values with commas between them.
func listText(list protoreflect.List) string {
	var values []string
	for i := range list.Len() {
		values = append(values, text(list.Get(i)))
	}
	return strings.Join(values, ",")
}

// appendClass adds the settings of a node class: unset ones come from the cluster.
func appendClass(all []Setting, c *v1.ClusterSpec, class *v1.NodeClass) []Setting {
	key := classKey + "." + class.GetName()
	inherited := map[string]string{}
	for _, of := range Settings(withoutClasses(c)) {
		inherited[key+"."+of.Key] = of.Value
	}
	m := class.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.JSONName() != "name" {
			all = appendSettings(all, key+"."+f.JSONName(), m, f, inherited)
		}
	}
	return all
}

func withoutClasses(c *v1.ClusterSpec) *v1.ClusterSpec {
	c = proto.CloneOf(c)
	c.NodeClasses = nil
	return c
}

// SettingKeys are the keys of all settings of a configuration.
func SettingKeys(c *v1.ClusterSpec) []string {
	var keys []string
	for _, s := range Settings(c) {
		keys = append(keys, s.Key)
	}
	return keys
}

// ParseSetting reads KEY=VALUE. An empty value means the default.
func ParseSetting(s string) (key, value string, err error) {
	key, value, ok := strings.Cut(s, "=")
	key = strings.TrimPrefix(strings.TrimSpace(key), clusterPath+".")
	if !ok || key == "" {
		return "", "", fmt.Errorf("%q is not of the form KEY=VALUE, such as liveness.silence=5s", s)
	}
	return key, strings.TrimSpace(value), nil
}

// Set changes one setting of a configuration; an empty value restores its default. It does
// not validate the value, see Validate.
func Set(c *v1.ClusterSpec, key, value string) error {
	steps := strings.Split(key, ".")
	if steps[0] == classKey && len(steps) > 1 {
		return setInClass(c, key, steps[1], steps[2:], value)
	}
	return setField(c.ProtoReflect(), c, key, steps, value)
}

// setInClass finds the class by its name, and adds it if it is missing.
func setInClass(c *v1.ClusterSpec, key, name string, steps []string, value string) error {
	i := slices.IndexFunc(c.NodeClasses, func(class *v1.NodeClass) bool { return class.GetName() == name })
	if len(steps) == 0 {
		if value != "" {
			return fmt.Errorf("%s is a class of nodes: set what it says, such as %s.labels=kind=laptop", key, key)
		}
		if i >= 0 {
			c.NodeClasses = slices.Delete(c.NodeClasses, i, i+1)
		}
		return nil
	}
	if steps[0] == "name" {
		return &UnknownSettingError{Key: key, Known: SettingKeys(c)}
	}
	class := &v1.NodeClass{Name: name}
	if i >= 0 {
		class = c.NodeClasses[i]
	}
	if err := setField(class.ProtoReflect(), withClass(c, class), key, steps, value); err != nil {
		return err
	}
	if i < 0 && value != "" {
		c.NodeClasses = append(c.NodeClasses, class)
	}
	return nil
}

// withClass is for suggesting keys.
func withClass(c *v1.ClusterSpec, class *v1.NodeClass) *v1.ClusterSpec {
	if slices.Contains(c.NodeClasses, class) {
		return c
	}
	with := proto.CloneOf(c)
	with.NodeClasses = append(with.NodeClasses, class)
	return with
}

func setField(m protoreflect.Message, c *v1.ClusterSpec, key string, steps []string, value string) error {
	f := m.Descriptor().Fields().ByJSONName(steps[0])
	switch {
	case f == nil, len(steps) > 1 && f.Message() == nil, len(steps) > 1 && f.IsList():
		return &UnknownSettingError{Key: key, Known: SettingKeys(c)}
	case f.IsMap() && len(steps) > 1:
		setEntry(m, f, strings.Join(steps[1:], "."), value)
		return nil
	case value == "" && len(steps) > 1 && !m.Has(f):
		return checkKey(f.Message(), c, key, steps[1:])
	case len(steps) > 1:
		return setField(m.Mutable(f).Message(), c, key, steps[1:], value)
	case value == "":
		m.Clear(f)
		return nil
	case f.IsMap():
		return fmt.Errorf("%s is not one setting but several: set one of them, such as %s.NAME", key, key)
	case f.Message() != nil:
		return fmt.Errorf("%s is not one setting but several: set one of them, such as %s", key, firstBelow(c, key))
	}
	values := []string{value}
	if f.IsList() {
		values = strings.Split(value, ",")
		m.Clear(f)
	}
	for _, one := range values {
		v, want := scalar(f, &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(one)})
		if want != "" {
			return fmt.Errorf("%s: must be %s", key, want)
		}
		if f.IsList() {
			m.Mutable(f).List().Append(v)
		} else {
			m.Set(f, v)
		}
	}
	return nil
}

// setEntry sets one entry of a map of texts; an empty value removes it.
func setEntry(m protoreflect.Message, f protoreflect.FieldDescriptor, name, value string) {
	at := protoreflect.ValueOfString(name).MapKey()
	if value != "" {
		m.Mutable(f).Map().Set(at, protoreflect.ValueOfString(value))
		return
	}
	if m.Has(f) {
		m.Mutable(f).Map().Clear(at)
	}
}

// checkKey refuses an unknown key of an unset part, without setting it.
func checkKey(d protoreflect.MessageDescriptor, c *v1.ClusterSpec, key string, steps []string) error {
	for i, step := range steps {
		f := d.Fields().ByJSONName(step)
		if f == nil || i+1 < len(steps) && f.Message() == nil {
			return &UnknownSettingError{Key: key, Known: SettingKeys(c)}
		}
		if f.IsMap() {
			return nil // any name
		}
		d = f.Message()
	}
	return nil
}

// firstBelow is an example of a key below another.
func firstBelow(c *v1.ClusterSpec, key string) string {
	for _, known := range SettingKeys(c) {
		if strings.HasPrefix(known, key+".") {
			return known
		}
	}
	return key + ".NAME.labels"
}
