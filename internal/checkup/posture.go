package checkup

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/doctor"
	"github.com/cloudless/cloudless/internal/spec"
)

// What a guide calls long, many or old.
const (
	longToken   = 90 * 24 * time.Hour
	unusedToken = 14 * 24 * time.Hour
	manyAdmins  = 3
	oldKeys     = 366 * 24 * time.Hour
	fewDaysLeft = 90 * 24 * time.Hour
	namedAtMost = 5
)

// postureItem judges one aspect of a cluster, given what it needs to know.
type postureItem struct {
	name  string
	needs []string
	judge func(*posture) []doctor.Finding
}

var postureItems = []postureItem{
	{"authority", []string{askedAuthority}, authorityAge},
	{"key-encryption key", []string{askedAuthority}, keyAge},
	{"login", []string{askedSettings}, login},
	{"admins", []string{askedTokens, askedBindings}, admins},
	{"token lifetimes", []string{askedTokens}, longTokens},
	{"unused tokens", []string{askedTokens}, unusedTokens},
	{"join tokens", []string{askedTokens}, joinTokens},
	{"policies", []string{askedPolicies}, policies},
	{"profile", []string{askedSettings, askedNamespaces}, profiles},
	{"quotas", []string{askedNamespaces}, quotas},
	{"privileged", []string{askedWorkloads}, workloadsThat("are privileged", "give them profile default and the capabilities that they need", func(s *cloudlessv1.WorkloadSpec) bool {
		return spec.ProfileOf(s) == spec.ProfilePrivileged
	})},
	{"host network", []string{askedWorkloads}, workloadsThat("have the network of their machines", "use network node and publish their ports", func(s *cloudlessv1.WorkloadSpec) bool {
		return s.GetNetwork() == "host"
	})},
	{"root", []string{askedWorkloads}, workloadsThat("run as root, or as the user of their image", "name a user such as 1000:1000, or set security.profile: restricted", mayBeRoot)},
	{"devices", []string{askedWorkloads}, workloadsThat("have devices of their machines", "leave them out of security.devices", func(s *cloudlessv1.WorkloadSpec) bool {
		return len(s.GetSecurity().GetDevices()) > 0
	})},
	{"limits", []string{askedWorkloads}, workloadsThat("have no limit of memory", "set resources.limits.memory, or defaults.limits in the configuration", func(s *cloudlessv1.WorkloadSpec) bool {
		return s.GetResources().GetLimits().GetMemory() == ""
	})},
	{"egress", []string{askedWorkloads}, workloadsThat("may connect to every address", "list what they need in egress.allow", func(s *cloudlessv1.WorkloadSpec) bool {
		return s.GetEgress() == nil && s.GetNetwork() != "none"
	})},
	{"passwords", []string{askedWorkloads}, workloadsThat("have what looks like a password in env, where all who may read them see it",
		"cloudless secret set NAME, and secrets instead of env", hasPassword)},
	{"nodes", []string{askedNodes}, versions},
}

// judge is pure.
func (p *posture) judge() (all []doctor.Finding) {
	for _, item := range postureItems {
		found := p.judgeItem(item)
		for i := range found {
			found[i].Check = item.name
		}
		all = append(all, found...)
	}
	return all
}

func (p *posture) judgeItem(item postureItem) []doctor.Finding {
	for _, need := range item.needs {
		if err := p.unread[need]; err != nil {
			return unseen(item.name, err)
		}
	}
	return item.judge(p)
}

func good(format string, args ...any) []doctor.Finding {
	return []doctor.Finding{{Level: doctor.OK, Text: fmt.Sprintf(format, args...)}}
}

func weak(mend, format string, args ...any) []doctor.Finding {
	return []doctor.Finding{{Level: doctor.Warn, Text: fmt.Sprintf(format, args...), Mend: mend}}
}

func broken(mend, format string, args ...any) []doctor.Finding {
	return []doctor.Finding{{Level: doctor.Fail, Text: fmt.Sprintf(format, args...), Mend: mend}}
}

const rotateAuthority, rotateKey = "cloudless ca rotate", "cloudless secret rekey"

func authorityAge(p *posture) []doctor.Finding {
	for _, c := range p.authority.GetCertificates() {
		if c.GetState() != "active" && c.GetState() != "" {
			continue
		}
		left := c.GetExpireTime().AsTime().Sub(p.now)
		switch {
		case left <= 0:
			return broken(rotateAuthority, "the cluster's authority has expired")
		case left < fewDaysLeft:
			return weak(rotateAuthority, "the cluster's authority expires in %d days", int(left.Hours()/24))
		}
	}
	if p.authority.GetStep() != "" {
		return weak("cloudless ca status shows which members it waits for", "a rotation of the authority is at step %s", p.authority.GetStep())
	}
	return old(p, p.authority.GetRotateTime().AsTime(), p.authority.GetRotateTime() != nil, "the cluster's authority", rotateAuthority)
}

func keyAge(p *posture) []doctor.Finding {
	if p.authority.GetKekStep() != "" {
		return weak("cloudless ca status shows which servers it waits for", "a rotation of the key-encryption key is at step %s", p.authority.GetKekStep())
	}
	return old(p, p.authority.GetKekRotateTime().AsTime(), p.authority.GetKekRotateTime() != nil, "the key-encryption key", rotateKey)
}

func old(p *posture, rotated time.Time, known bool, what, mend string) []doctor.Finding {
	switch {
	case !known:
		return weak(mend, "%s has never been rotated", what)
	case p.now.Sub(rotated) > oldKeys:
		return weak(mend, "%s was last rotated %d days ago", what, int(p.now.Sub(rotated).Hours()/24))
	}
	return good("%s was rotated on %s", what, rotated.UTC().Format(time.DateOnly))
}

func login(p *posture) []doctor.Finding {
	if p.settings.GetOidc().GetIssuer() == "" {
		return weak("cloudless cluster config set oidc.issuer=URL oidc.clientId=ID", "users have no login of their own, only tokens that they pass on")
	}
	return good("users log in at %s", p.settings.GetOidc().GetIssuer())
}

func admins(p *posture) []doctor.Finding {
	var names []string
	for _, t := range p.tokens {
		if t.GetSpec().GetRole() == "admin" && !p.expired(t) {
			names = append(names, "token "+t.GetMetadata().GetName())
		}
	}
	for _, b := range p.bindings {
		if s := b.GetSpec(); s.GetRole() == "admin" && s.GetNamespace() == "" {
			for _, user := range s.GetUsers() {
				names = append(names, "user "+user)
			}
			for _, group := range s.GetGroups() {
				names = append(names, "group "+group)
			}
			for _, token := range s.GetTokens() {
				names = append(names, "token "+token)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > manyAdmins {
		return weak("give those who need less a role of their own: cloudless role apply, cloudless token rm", "%d may do everything: %s", len(names), some(names))
	}
	return good("%s may do everything", counted(len(names), "identity", "identities"))
}

func (p *posture) expired(t *cloudlessv1.Token) bool {
	return t.GetSpec().GetExpireTime() != nil && !t.GetSpec().GetExpireTime().AsTime().After(p.now)
}

// joins reports whether a token lets machines join.
func joins(t *cloudlessv1.Token) bool {
	return t.GetSpec().GetRole() == "node" || t.GetSpec().GetRole() == "server"
}

// tokensThat are the names of tokens that are still valid.
func (p *posture) tokensThat(match func(*cloudlessv1.Token) bool) (names []string) {
	for _, t := range p.tokens {
		if !p.expired(t) && match(t) {
			names = append(names, t.GetMetadata().GetName())
		}
	}
	return names
}

const removeToken = "cloudless token create --ttl 8h for what needs one, and cloudless token rm NAME"

func longTokens(p *posture) []doctor.Finding {
	long := p.tokensThat(func(t *cloudlessv1.Token) bool {
		return t.GetSpec().GetExpireTime() == nil || t.GetSpec().GetExpireTime().AsTime().Sub(p.now) > longToken
	})
	if len(long) > 0 {
		return weak(removeToken, "%s for more than %d days: %s", tokensAre(long, "valid"), int(longToken.Hours()/24), some(long))
	}
	return good("no token is valid for more than %d days", int(longToken.Hours()/24))
}

func unusedTokens(p *posture) []doctor.Finding {
	unused := p.tokensThat(func(t *cloudlessv1.Token) bool {
		last := t.GetStatus().GetLastUseTime()
		if last == nil {
			last = t.GetMetadata().GetCreateTime()
		}
		return !joins(t) && p.now.Sub(last.AsTime()) > unusedToken
	})
	if len(unused) > 0 {
		return weak("cloudless token rm NAME", "%s for %d days: %s", tokensAre(unused, "unused"), int(unusedToken.Hours()/24), some(unused))
	}
	return good("every token is in use")
}

func joinTokens(p *posture) []doctor.Finding {
	open := p.tokensThat(func(t *cloudlessv1.Token) bool {
		return joins(t) && t.GetSpec().GetNodeName() == "" && t.GetSpec().GetUses() > t.GetStatus().GetUsed()+1
	})
	if len(open) > 0 {
		return weak("cloudless token rm NAME, and one token for each machine", "several machines of any name can join by one token: %s", some(open))
	}
	return good("no token lets several machines of any name join")
}

func tokensAre(names []string, what string) string {
	return counted(len(names), "token is ", "tokens are ") + what
}

func counted(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

func policies(p *posture) []doctor.Finding {
	enforced := 0
	for _, one := range p.policies {
		if mode := one.GetSpec().GetMode(); mode == "" || mode == "enforce" {
			enforced++
		}
	}
	if enforced == 0 {
		return weak("cloudless policy apply -f FILE; docs/policy.md has examples", "no policy is enforced: every registry is allowed, and every label is optional")
	}
	return good("%s enforced", counted(enforced, "policy is", "policies are"))
}

func profiles(p *posture) []doctor.Finding {
	var loose []string
	for _, n := range p.namespaces {
		if profile := n.GetSpec().GetProfile(); profile == spec.ProfilePrivileged || profile == "" && p.settings.GetSecurity().GetProfile() == spec.ProfilePrivileged {
			loose = append(loose, n.GetMetadata().GetName())
		}
	}
	if len(loose) > 0 {
		return weak("cloudless namespace set NAME --profile default", "privileged workloads are allowed in %s", some(loose))
	}
	if p.settings.GetSecurity().GetProfile() != spec.ProfileRestricted {
		return weak("cloudless cluster config set security.profile=restricted, and cloudless namespace set NAME --profile default where more is needed",
			"workloads may run as root unless they say otherwise")
	}
	return good("workloads are restricted unless their namespace says otherwise")
}

func quotas(p *posture) []doctor.Finding {
	var without []string
	for _, n := range p.namespaces {
		if q := n.GetSpec().GetQuota(); q.GetCpu() == "" || q.GetMemory() == "" {
			without = append(without, n.GetMetadata().GetName())
		}
	}
	if len(without) > 0 {
		return weak("cloudless namespace set NAME --cpu 8 --memory 16Gi", "nothing limits how much %s may take of the cluster", namespacesNamed(without))
	}
	return good("every namespace has a quota of CPU and memory")
}

func namespacesNamed(names []string) string {
	if len(names) == 1 {
		return "namespace " + names[0]
	}
	return "the namespaces " + some(names)
}

// some are the first of many names.
func some(names []string) string {
	if len(names) <= namedAtMost {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namedAtMost], ", "), len(names)-namedAtMost)
}

// workloadsThat finds workloads by their spec.
func workloadsThat(do, mend string, match func(*cloudlessv1.WorkloadSpec) bool) func(*posture) []doctor.Finding {
	return func(p *posture) []doctor.Finding {
		var names []string
		for _, w := range p.workloads {
			if match(w.GetSpec()) {
				names = append(names, w.GetMetadata().GetNamespace()+"/"+w.GetMetadata().GetName())
			}
		}
		if len(names) > 0 {
			return weak(mend, "%d of %d workloads %s: %s", len(names), len(p.workloads), do, some(names))
		}
		return good("no workloads %s", do)
	}
}

func mayBeRoot(s *cloudlessv1.WorkloadSpec) bool {
	user, _, _ := strings.Cut(s.GetUser(), ":")
	return spec.ProfileOf(s) != spec.ProfileRestricted && (user == "" || user == "root" || strings.Trim(user, "0") == "")
}

// passwordName matches names of variables that hold passwords.
var passwordName = regexp.MustCompile(`(?i)(passw(or)?d|passphrase|secret|api_?key|private_?key|access_?key|(^|_)token)$`)

func hasPassword(s *cloudlessv1.WorkloadSpec) bool {
	for name, value := range s.GetEnv() {
		if value != "" && passwordName.MatchString(name) {
			return true
		}
	}
	return false
}

func versions(p *posture) []doctor.Finding {
	found := map[string]bool{}
	for _, n := range p.nodes {
		if version := n.GetStatus().GetInfo().GetVersion(); version != "" {
			found[version] = true
		}
	}
	if len(found) > 1 {
		return weak("upgrade the older ones", "nodes run %d versions of cloudless", len(found))
	}
	return good("all nodes run the same version of cloudless")
}
