package model

import "testing"

func TestLacks(t *testing.T) {
	pod := LabelMap{
		"app": "web", "env": "dev", NamespaceLabel: "shop", NamespaceLabelPrefix + MetadataNameLabel: "shop", NamespaceLabelPrefix + "purpose": "testing",
		OrchestratorLabel: "k8s", ServiceAccountLabel: "robot",
	}
	for _, c := range []struct {
		selector Selector
		want     string
	}{
		{Everything(), ""},
		{Equal("app", "web"), ""},
		{Equal("app", "db"), "label app=db; has app=web"},
		{In("app", "db", "api"), "label app in (api, db); has app=web"},
		{Equal("tier", "x"), "label tier=x; has no label tier"},
		{Has("tier"), "label tier; has no label tier"},
		{Not(Has("env")), "no label env; has env=dev"},
		{Not(Equal("env", "dev")), "no label env=dev; has env=dev"},
		{StartsWith("app", "d"), "label app starts with 'd'; has app=web"},
		{Equal(NamespaceLabel, "prod"), "namespace prod; is in namespace shop"},
		{In(NamespaceLabelPrefix+MetadataNameLabel, "a", "b"), "namespace a or b; is in namespace shop"},
		{Equal(NamespaceLabelPrefix+"purpose", "production"), "namespace label purpose=production; has purpose=testing"},
		{Equal(ServiceAccountLabel, "boss"), "service account boss; has service account robot"},
		{Equal(ServiceAccountLabelPrefix+"team", "x"), "service account label team=x; has no service account label team"},
		{Not(Equal(OrchestratorLabel, "k8s")), "no a pod; is a pod"},
		{And(Equal("app", "web"), Equal("env", "prod"), Equal(NamespaceLabel, "prod")), "label env=prod; has env=dev, namespace prod; is in namespace shop"},
		{Or(And(Equal("app", "a"), Equal("env", "a")), Equal("app", "b")), "label app=b; has app=web"},
		{Not(And(Equal("app", "web"), Equal("env", "dev"))), "what is not app == 'web' && env == 'dev'; is"},
		{Selector{}, "nothing; is there"},
	} {
		var got string
		for i, l := range c.selector.Lacks(pod) {
			if i > 0 {
				got += ", "
			}
			got += l.Wants + "; " + l.Is
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.selector, got, c.want)
		}
		if (got == "") != c.selector.Matches(pod) {
			t.Errorf("%s lacks %q, but matches: %v", c.selector, got, c.selector.Matches(pod))
		}
	}
}
