"""Shapes of the secrets that services hand out, as data.

`TOKENS` and `NEAR` are the rules of gitleaks 8.30.1 (https://github.com/gitleaks/gitleaks, config/gitleaks.toml, MIT
licence, Copyright (c) 2019 Zachary Rice; the licence is in NOTICE), converted: what a rule says of the text around a
secret is said once, in `detectors`, so a row keeps the name, what tells that it may apply, the shape and the least
entropy. Every repetition has an upper bound. `OURS` holds newer shapes and looser ones of the same, from the services'
own documentation.
"""

# ruff: noqa: E501  a row of a table stays in one line

from __future__ import annotations

TOKENS = r"""
1password-secret-key | A3- | A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5} | 3.8
1password-service-account-token | ops_eyJ | ops_eyJ[a-zA-Z0-9+/]{250,4000}={0,3} | 4
adobe-client-secret | p8e- | p8e-(?i:[a-z0-9]{32}) | 2
age-secret-key | AGE-SECRET-KEY-1 | AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}
airtable-personal-access-token | pat | pat[a-zA-Z0-9]{14}\.[a-f0-9]{64}
alibaba-access-key-id | LTAI | LTAI(?i:[a-z0-9]{20}) | 2
anthropic-admin-api-key | sk-ant-admin01- | sk-ant-admin01-[a-zA-Z0-9_-]{93}AA
anthropic-api-key | sk-ant-api03- | sk-ant-api03-[a-zA-Z0-9_-]{93}AA
artifactory-api-key | AKCp | AKCp[A-Za-z0-9]{69} | 4.5
artifactory-reference-token | cmVmd | cmVmd[A-Za-z0-9]{59} | 4.5
atlassian-api-token | ATATT3 | ATATT3[A-Za-z0-9_\-=]{186} | 3.5
authress-service-client-access-key | sc_ ext_ scauth_ authress_ | (?:sc|ext|scauth|authress)_(?i:[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.(?-i:acc)[_-][a-z0-9-]{10,32}\.[a-z0-9+/_=-]{30,120}) | 2
aws-access-token | A3T AKIA ASIA ABIA ACCA | (?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16} | 3
aws-amazon-bedrock-api-key-long-lived | ABSK | ABSK[A-Za-z0-9+/]{109,269}={0,2} | 3
aws-bedrock-api-key-short-lived | bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t | bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t[\w+/=%-]{0,4000} | 3
clickhouse-cloud-api-secret-key | 4b1d | 4b1d[A-Za-z0-9]{38} | 3
clojars-api-token | CLOJARS_ | CLOJARS_(?i:[a-z0-9]{60}) | 2
cloudflare-origin-ca-key | v1.0- | v1\.0-[a-f0-9]{24}-[a-f0-9]{146} | 2
databricks-api-token | dapi | dapi[a-f0-9]{32}(?:-\d)? | 3
digitalocean-access-token | doo_v1_ | doo_v1_[a-f0-9]{64} | 3
digitalocean-pat | dop_v1_ | dop_v1_[a-f0-9]{64} | 3
digitalocean-refresh-token | dor_v1_ | dor_v1_(?i:[a-f0-9]{64})
doppler-api-token | dp.pt. | dp\.pt\.(?i:[a-z0-9]{43}) | 2
duffel-api-token | duffel_test_ duffel_live_ | duffel_(?:test|live)_(?i:[a-z0-9_\-=]{43}) | 2
dynatrace-api-token | dt0c01. | dt0c01\.(?i:[a-z0-9]{24}\.[a-z0-9]{64}) | 4
easypost-api-token | EZAK | EZAK(?i:[a-z0-9]{54}) | 2
easypost-test-api-token | EZTK | EZTK(?i:[a-z0-9]{54}) | 2
facebook-page-access-token | EAAM EAAC | EAA[MC][a-zA-Z0-9]{100,1000} | 4
flutterwave-encryption-key | FLWSECK_TEST- | FLWSECK_TEST-(?i:[a-h0-9]{12}) | 2
flutterwave-public-key | FLWPUBK_TEST- | FLWPUBK_TEST-(?i:[a-h0-9]{32}-X) | 2
flutterwave-secret-key | FLWSECK_TEST- | FLWSECK_TEST-(?i:[a-h0-9]{32}-X) | 2
flyio-access-token | fo1_ fm1a_ fm1r_ fm2_ | (?:fo1_[\w-]{43}|fm(?:1[ar]|2)_[a-zA-Z0-9+/]{100,4000}={0,3}) | 4
frameio-api-token | fio-u- | fio-u-(?i:[a-z0-9\-_=]{64})
gcp-api-key | AIza | AIza[\w-]{35} | 4
github-app-token | ghu_ ghs_ | gh[us]_[0-9a-zA-Z]{36} | 3
github-fine-grained-pat | github_pat_ | github_pat_\w{82} | 3
github-oauth | gho_ | gho_[0-9a-zA-Z]{36} | 3
github-pat | ghp_ | ghp_[0-9a-zA-Z]{36} | 3
github-refresh-token | ghr_ | ghr_[0-9a-zA-Z]{36} | 3
gitlab-cicd-job-token | glcbt- | glcbt-[0-9a-zA-Z]{1,5}_[0-9a-zA-Z_-]{20} | 3
gitlab-deploy-token | gldt- | gldt-[0-9a-zA-Z_-]{20} | 3
gitlab-feature-flag-client-token | glffct- | glffct-[0-9a-zA-Z_-]{20} | 3
gitlab-feed-token | glft- | glft-[0-9a-zA-Z_-]{20} | 3
gitlab-incoming-mail-token | glimt- | glimt-[0-9a-zA-Z_-]{25} | 3
gitlab-kubernetes-agent-token | glagent- | glagent-[0-9a-zA-Z_-]{50} | 3
gitlab-oauth-app-secret | gloas- | gloas-[0-9a-zA-Z_-]{64} | 3
gitlab-pat | glpat- | glpat-[\w-]{20} | 3
gitlab-pat-routable | glpat- | glpat-[0-9a-zA-Z_-]{27,300}\.[0-9a-z]{2}[0-9a-z]{7} | 4
gitlab-ptt | glptt- | glptt-[0-9a-f]{40} | 3
gitlab-rrt | GR1348941 | GR1348941[\w-]{20} | 3
gitlab-runner-authentication-token | glrt- | glrt-[0-9a-zA-Z_-]{20} | 3
gitlab-runner-authentication-token-routable | glrt-t | glrt-t\d_[0-9a-zA-Z_-]{27,300}\.[0-9a-z]{2}[0-9a-z]{7} | 4
gitlab-scim-token | glsoat- | glsoat-[0-9a-zA-Z_-]{20} | 3
gitlab-session-cookie | _gitlab_session= | _gitlab_session=[0-9a-z]{32} | 3
grafana-api-key | eyJrIjoi | eyJrIjoi(?i:[A-Za-z0-9]{70,400}={0,3}) | 3
grafana-cloud-api-token | glc_ | glc_(?i:[A-Za-z0-9+/]{32,400}={0,3}) | 3
grafana-service-account-token | glsa_ | glsa_(?i:[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}) | 3
harness-api-key | pat. sat. | [ps]at\.[a-zA-Z0-9_-]{22}\.[a-zA-Z0-9]{24}\.[a-zA-Z0-9]{20}
heroku-api-key-v2 | HRKU-AA | HRKU-AA[0-9a-zA-Z_-]{58} | 4
huggingface-access-token | hf_ | hf_(?i:[a-z]{34}) | 2
huggingface-organization-api-token | api_org_ | api_org_(?i:[a-z]{34}) | 2
infracost-api-token | ico- | ico-[a-zA-Z0-9]{32} | 3
intra42-client-secret | s-s4t2ud- s-s4t2af- | s-s4t2(?:ud|af)-(?i:[abcdef0123456789]{64}) | 3
linear-api-key | lin_api_ | lin_api_(?i:[a-z0-9]{40}) | 2
microsoft-teams-webhook | webhook.office.com/webhookb2/ | webhook\.office\.com/webhookb2/[a-z0-9-]{36}@[a-z0-9-]{36}/IncomingWebhook/[a-z0-9]{32}/[a-z0-9-]{36}
notion-api-token | ntn_ | ntn_[0-9]{11}[A-Za-z0-9]{32}[A-Za-z0-9]{3} | 4
npm-access-token | npm_ | npm_(?i:[a-z0-9]{36}) | 2
octopus-deploy-api-key | API- | API-[A-Z0-9]{26} | 3
openai-api-key | sk- | sk-(?:(?:proj|svcacct|admin)-(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})|[a-zA-Z0-9]{20})T3BlbkFJ[A-Za-z0-9_-]{20,74} | 3
openshift-user-token | sha256~ | sha256~[\w-]{43} | 3.5
perplexity-api-key | pplx- | pplx-[a-zA-Z0-9]{48} | 4
planetscale-api-token | pscale_tkn_ | pscale_tkn_(?i:[\w=\.-]{32,64}) | 3
planetscale-oauth-token | pscale_oauth_ | pscale_oauth_[\w=\.-]{32,64} | 3
planetscale-password | pscale_pw_ | pscale_pw_(?i:(?i:[\w=\.-]{32,64})) | 3
postman-api-token | PMAK- | PMAK-(?i:[a-f0-9]{24}-[a-f0-9]{34}) | 3
prefect-api-token | pnu_ | pnu_[a-zA-Z0-9]{36} | 2
pulumi-api-token | pul- | pul-[a-f0-9]{40} | 2
pypi-upload-token | pypi-AgEIcHlwaS5vcmc | pypi-AgEIcHlwaS5vcmc[\w-]{50,1000} | 3
readme-api-token | rdme_ | rdme_[a-z0-9]{70} | 2
rubygems-api-token | rubygems_ | rubygems_[a-f0-9]{48} | 2
scalingo-api-token | tk-us- | tk-us-[\w-]{48} | 2
sendgrid-api-token | SG. | SG\.(?i:[a-z0-9=_\-\.]{66}) | 2
sendinblue-api-token | xkeysib- | xkeysib-[a-f0-9]{64}-(?i:[a-z0-9]{16}) | 2
sentry-org-token | sntrys_eyJ | sntrys_eyJ[a-zA-Z0-9+/]{30,400}={0,2}_[a-zA-Z0-9+/]{43} | 4.5
sentry-user-token | sntryu_ | sntryu_[a-f0-9]{64} | 3.5
settlemint-application-access-token | sm_aat_ | sm_aat_[a-zA-Z0-9]{16} | 3
settlemint-personal-access-token | sm_pat_ | sm_pat_[a-zA-Z0-9]{16} | 3
settlemint-service-access-token | sm_sat_ | sm_sat_[a-zA-Z0-9]{16} | 3
shippo-api-token | shippo_live_ shippo_test_ | shippo_(?:live|test)_[a-fA-F0-9]{40} | 2
shopify-access-token | shpat_ | shpat_[a-fA-F0-9]{32} | 2
shopify-custom-access-token | shpca_ | shpca_[a-fA-F0-9]{32} | 2
shopify-private-app-access-token | shppa_ | shppa_[a-fA-F0-9]{32} | 2
shopify-shared-secret | shpss_ | shpss_[a-fA-F0-9]{32} | 2
slack-app-token | xapp- | xapp-\d-[A-Z0-9]{1,40}-\d{1,40}-[a-z0-9]{1,200} | 2
slack-bot-token | xoxb- | xoxb-[0-9]{10,13}-[0-9]{10,13}[a-zA-Z0-9-]{0,200} | 3
slack-config-access-token | xoxe.xox | xoxe\.xox[bp]-\d-[A-Z0-9]{163,166} | 2
slack-config-refresh-token | xoxe- | xoxe-(?i:\d-[A-Z0-9]{146}) | 2
slack-legacy-bot-token | xoxb- | xoxb-[0-9]{8,14}-[a-zA-Z0-9]{18,26} | 2
slack-legacy-token | xoxo- xoxs- | xox[os]-\d{1,40}-\d{1,40}-\d{1,40}-[a-fA-F\d]{1,200} | 2
slack-legacy-workspace-token | xoxa- xoxr- | xox[ar]-(?:\d-)?[0-9a-zA-Z]{8,48} | 2
slack-user-token | xoxp- xoxe- | xox[pe](?:-[0-9]{10,13}){3}-[a-zA-Z0-9-]{28,34} | 2
slack-webhook-url | hooks.slack.com/ | hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{43,56}
sourcegraph-access-token | sgp_ | sgp_(?:(?:[a-fA-F0-9]{16}|local)_)?[a-fA-F0-9]{40} | 3
square-access-token | EAAA sq0atp- | (?:EAAA|sq0atp-)[\w-]{22,60} | 2
stripe-access-token | sk_test_ sk_live_ sk_prod_ rk_test_ rk_live_ rk_prod_ | (?:sk|rk)_(?:test|live|prod)_[a-zA-Z0-9]{10,99} | 2
twilio-api-key | SK | SK[0-9a-fA-F]{32} | 3
vault-batch-token | hvb. | hvb\.[\w-]{138,300} | 4
vault-service-token | hvs. s. | (?:hvs\.[\w-]{90,120}|s\.(?=[a-z]{0,24}+[A-Z0-9])[A-Za-z0-9]{24}(?![\w.])) | 3.5
"""
"""name | literal beginnings, one of them at least | shape from there | least entropy in bits per character."""

OURS = r"""
anthropic-any | sk-ant- | sk-ant-[a-z0-9]{2,12}-[\w-]{20,400}
apify | apify_api_ | apify_api_[A-Za-z0-9]{30,46}
assemblyai-or-cerebras | csk- | csk-[a-z0-9]{40,60}
atlassian-any | ATATT3 ATCTT3 ATBB | AT(?:ATT3|CTT3|BB)[\w=-]{24,400}
aws-any | AKIA ASIA | A[KS]IA[A-Z0-9]{16}
azure-storage | AccountKey= SharedAccessKey= | (?:Account|SharedAccess)Key=[A-Za-z0-9+/]{40,100}={0,2}
braintree | access_token$production$ | access_token\$production\$[0-9a-z]{16}\$[0-9a-f]{32}
buildkite | bkua_ bkpt_ | bk(?:ua|pt)_[0-9a-f]{32,64}
circleci | CCIPAT_ CCIPRJ_ | CCI(?:PAT|PRJ)_[\w-]{20,120}
contentful | CFPAT- | CFPAT-[\w-]{40,64}
crates-io | cio | cio[A-Za-z0-9]{32}
deepgram-or-other-dg | dg_ | dg_[A-Za-z0-9]{32,64}
discord-bot-token | M N O | [MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{25,45}
discord-webhook | discord.com/api/webhooks/ discordapp.com/api/webhooks/ | discord(?:app)?\.com/api/webhooks/\d{16,20}/[\w-]{50,90}
docker | dckr_pat_ dckr_oat_ | dckr_[po]at_[\w-]{24,64}
doppler-any | dp.st. dp.ct. dp.sa. dp.scim. dp.audit. | dp\.(?:st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}
elevenlabs-or-paystack | sk_ | sk_[0-9a-f]{40,64}
facebook-any | EAA | EAA[A-Z][A-Za-z0-9]{80,1000} | 4
figma | figd_ figo_ | fig[do]_[\w-]{38,80}
firecrawl | fc- | fc-[0-9a-f]{32}
fireworks | fw_ | fw_[A-Za-z0-9]{22,40}
flutterwave-live | FLWSECK- | FLWSECK-[0-9a-f]{32}-[0-9A-Za-z]{0,16}-?X
github-any | ghp_ gho_ ghu_ ghs_ ghr_ | gh[pousr]_[A-Za-z0-9_]{20,300}
github-pat-any | github_pat_ | github_pat_\w{22,120}
gitlab-any | glpat- glptt- gldt- glrt- glcbt- gloas- glagent- glffct- glft- glimt- glsoat- | gl[a-z]{2,6}-[\w.-]{16,310}
google-oauth-secret | GOCSPX- | GOCSPX-[\w-]{24,40}
google-oauth-token | ya29. | ya29\.[\w-]{20,2000}
google-refresh-token | 1//0 | 1//0[\w-]{38,200}
google-api-new | AQ.Ab | AQ\.Ab[\w-]{40,80}
google-api-any | AIza | AIza[\w-]{30,45}
groq | gsk_ | gsk_[A-Za-z0-9]{40,64}
huggingface-any | hf_ | hf_[A-Za-z0-9]{30,50}
honeycomb | hcaik_ hcbik_ hcamk_ | hc[abm][a-z]{0,2}k_[a-z0-9]{32,70}
hubspot | pat-na1- pat-na2- pat-na3- pat-eu1- pat-ap1- | pat-[a-z]{2}\d-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}
jina | jina_ | jina_[A-Za-z0-9_-]{40,80}
langfuse | sk-lf- | sk-lf-[0-9a-f-]{36}
langsmith | lsv2_pt_ lsv2_sk_ | lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}
launchdarkly | sdk- api- | (?:sdk|api)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}
linear-oauth | lin_oauth_ lin_wh_ | lin_(?:oauth|wh)_[A-Za-z0-9]{32,80}
mailgun | key- | key-[0-9a-f]{32}
mapbox-secret | sk.eyJ | sk\.eyJ[\w-]{40,200}\.[\w-]{20,40}
mongodb-atlas | mdb_sa_sk_ | mdb_sa_sk_[\w-]{36,60}
neon | napi_ | napi_[a-z0-9]{40,80}
netlify | nfp_ nfc_ nfo_ nfu_ | nf[pcou]_[A-Za-z0-9]{30,46}
new-relic | NRAK- NRII- | NR(?:AK|II)-[A-Za-z0-9-]{20,40}
notion-old | secret_ | secret_[A-Za-z0-9]{43}
npm-any | npm_ | npm_[A-Za-z0-9]{36}
nuget | oy2 | oy2[a-z0-9]{43}
nvidia | nvapi- | nvapi-[\w-]{50,80}
openai-any | sk- | sk-(?:proj-|svcacct-|admin-|None-|or-v1-|test-|live-|prod-)?(?=(?:[\w-]{0,24}|[A-Za-z0-9]{0,60})[0-9])(?=[\w-]{0,40}[A-Za-z])[A-Za-z0-9_-]{12,300}
pagerduty | pdus+ | pdus\+[\w+-]{16,64}
pinecone | pcsk_ | pcsk_[A-Za-z0-9_]{40,90}
posthog | phx_ | phx_[A-Za-z0-9]{40,60}
pypi-any | pypi- | pypi-AgE[\w-]{40,1000}
razorpay | rzp_live_ rzp_test_ | rzp_(?:live|test)_[A-Za-z0-9]{14}
render | rnd_ | rnd_(?=\w{0,30}[0-9])(?=\w{0,30}[A-Z])[A-Za-z0-9]{26,40}
replicate | r8_ | r8_[A-Za-z0-9]{30,50}
e2b | e2b_ | e2b_[0-9a-f]{40}
resend | re_ | re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,32}
sendgrid-any | SG. | SG\.[\w-]{16,32}\.[\w-]{30,64}
sendinblue-smtp | xsmtpsib- | xsmtpsib-[a-f0-9]{64}-[A-Za-z0-9]{16}
sentry-org-any | sntrys_ | sntrys_[\w+/=-]{60,600}
shopify-any | shpat_ shpca_ shppa_ shpss_ | shp(?:at|ca|pa|ss)_[a-fA-F0-9]{24,64}
slack-any | xoxb- xoxp- xoxa- xoxr- xoxs- xoxe- xoxc- xoxd- | xox[a-eprs]-[A-Za-z0-9%-]{18,400}
sonar | squ_ sqp_ sqa_ | sq[upa]_[a-f0-9]{40}
square-secret | sq0csp- sq0atp- | sq0(?:csp|atp)-[\w-]{22,60}
stripe-webhook | whsec_ | whsec_[A-Za-z0-9+/=]{24,80}
supabase | sbp_ sb_secret_ | sb(?:p|_secret)_[A-Za-z0-9_-]{30,64}
tailscale | tskey- | tskey-[a-z]{2,12}-[A-Za-z0-9-]{16,80}
tavily | tvly- | tvly-(?:dev-|prod-)?[A-Za-z0-9-]{20,48}
telegram-bot-address | bot | bot[1-9][0-9]{7,10}:A[\w-]{32,37}
telegram-bot-token | 1 2 3 4 5 6 7 8 9 | [1-9][0-9]{7,10}:AA[\w-]{32,36}
terraform-any | tfr- | tfr-[A-Za-z0-9]{24,64}
trello | ATTA | ATTA[0-9a-f]{64}[0-9A-F]{8}
together | tgp_v1_ | tgp_v1_[\w-]{40,60}
yandex-oauth | y0_ | y0_[\w-]{50,80}
vault-any | hvs. hvb. hvr. | hv[sbr]\.[\w-]{24,400}
vercel | vcp_ vci_ vca_ vcr_ vck_ | vc[piark]_[A-Za-z0-9]{24,80}
vk | vk1.a. | vk1\.a\.[\w-]{60,300}
xai | xai- | xai-[A-Za-z0-9]{60,100}
"""
"""As `TOKENS`."""

NEAR = r"""
adafruit-api-key | adafruit | [a-z0-9_-]{32}
adobe-client-id | adobe | [a-f0-9]{32} | 2
airtable-api-key | airtable | [a-z0-9]{17}
algolia-api-key | algolia | [a-z0-9]{32}
alibaba-secret-key | alibaba | [a-z0-9]{30} | 2
asana-client-secret | asana | [a-z0-9]{32}
atlassian-api-token | atlassian|confluence|jira | [a-z0-9]{20}[a-f0-9]{4} | 3.5
beamer-api-token | beamer | b_[a-z0-9=_\-]{44}
bitbucket-client-id | bitbucket | [a-z0-9]{32}
bitbucket-client-secret | bitbucket | [a-z0-9=_\-]{64}
bittrex-access-key | bittrex | [a-z0-9]{32}
bittrex-secret-key | bittrex | [a-z0-9]{32}
cisco-meraki-api-key | meraki | [0-9a-f]{40} | 3
cloudflare-api-key | cloudflare | [a-z0-9_-]{40} | 2
cloudflare-global-api-key | cloudflare | [a-f0-9]{37} | 2
codecov-access-token | codecov | [a-z0-9]{32}
cohere-api-token | cohere|co_api_key | [a-zA-Z0-9]{40} | 4
coinbase-access-token | coinbase | [a-z0-9_-]{64}
confluent-access-token | confluent | [a-z0-9]{16}
confluent-secret-key | confluent | [a-z0-9]{64}
contentful-delivery-api-token | contentful | [a-z0-9=_\-]{43}
datadog-access-token | datadog | [a-z0-9]{40}
defined-networking-api-token | dnkey | dnkey-[a-z0-9=_\-]{26}-[a-z0-9=_\-]{52}
discord-api-token | discord | [a-f0-9]{64}
discord-client-secret | discord | [a-z0-9=_\-]{32} | 2
droneci-access-token | droneci | [a-z0-9]{32}
dropbox-api-token | dropbox | [a-z0-9]{15}
dropbox-long-lived-api-token | dropbox | [a-z0-9]{11}(AAAAAAAAAA)[a-z0-9\-_=]{43}
dropbox-short-lived-api-token | dropbox | sl\.[a-z0-9\-=_]{135}
etsy-access-token | etsy | [a-z0-9]{24} | 3
facebook-secret | facebook | [a-f0-9]{32} | 3
fastly-api-token | fastly | [a-z0-9=_\-]{32}
finicity-api-token | finicity | [a-f0-9]{32}
finicity-client-secret | finicity | [a-z0-9]{20}
finnhub-access-token | finnhub | [a-z0-9]{20}
flickr-access-token | flickr | [a-z0-9]{32}
freshbooks-access-token | freshbooks | [a-z0-9]{64}
gitter-access-token | gitter | [a-z0-9_-]{40}
gocardless-api-token | gocardless | live_[a-z0-9\-_=]{40}
heroku-api-key | heroku | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
hubspot-api-key | hubspot | [0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}
intercom-api-key | intercom | [a-z0-9=_\-]{60}
jfrog-api-key | jfrog|artifactory|bintray|xray | [a-z0-9]{73}
jfrog-identity-token | jfrog|artifactory|bintray|xray | [a-z0-9]{64}
kraken-access-token | kraken | [a-z0-9\/=_\+\-]{80,90}
kucoin-access-token | kucoin | [a-f0-9]{24}
kucoin-secret-key | kucoin | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
launchdarkly-access-token | launchdarkly | [a-z0-9=_\-]{40}
linear-client-secret | linear | [a-f0-9]{32} | 2
linkedin-client-id | linked[_-]?in | [a-z0-9]{14} | 2
linkedin-client-secret | linked[_-]?in | [a-z0-9]{16} | 2
lob-api-key | lob | (live|test)_[a-f0-9]{35}
lob-pub-api-key | lob | (test|live)_pub_[a-f0-9]{31}
looker-client-id | looker | [a-z0-9]{20}
looker-client-secret | looker | [a-z0-9]{24}
mailchimp-api-key | mailchimpsdk.initialize|mailchimp | [a-f0-9]{32}-us\d\d
mailgun-private-api-token | mailgun | key-[a-f0-9]{32}
mailgun-pub-key | mailgun | pubkey-[a-f0-9]{32}
mailgun-signing-key | mailgun | [a-h0-9]{32}-[a-h0-9]{8}-[a-h0-9]{8}
mapbox-api-token | mapbox | pk\.[a-z0-9]{60}\.[a-z0-9]{22}
mattermost-access-token | mattermost | [a-z0-9]{26}
messagebird-api-token | message[_-]?bird | [a-z0-9]{25}
messagebird-client-id | message[_-]?bird | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
netlify-access-token | netlify | [a-z0-9=_\-]{40,46}
new-relic-browser-api-token | new-relic|newrelic|new_relic | NRJS-[a-f0-9]{19}
new-relic-insert-key | new-relic|newrelic|new_relic | NRII-[a-z0-9-]{32}
new-relic-user-api-id | new-relic|newrelic|new_relic | [a-z0-9]{64}
new-relic-user-api-key | new-relic|newrelic|new_relic | NRAK-[a-z0-9]{27}
nytimes-access-token | nytimes|new-york-times,|newyorktimes | [a-z0-9=_\-]{32}
okta-access-token | okta | 00[\w=\-]{40} | 4
plaid-api-token | plaid | access-(?:sandbox|development|production)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
plaid-client-id | plaid | [a-z0-9]{24} | 3.5
plaid-secret-key | plaid | [a-z0-9]{30} | 3.5
privateai-api-token | private[_-]?ai | [a-z0-9]{32} | 3
rapidapi-access-token | rapidapi | [a-z0-9_-]{50}
sendbird-access-id | sendbird | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
sendbird-access-token | sendbird | [a-f0-9]{40}
sentry-access-token | sentry | [a-f0-9]{64} | 3
sidekiq-secret | bundle_enterprise__contribsys__com|bundle_gems__contribsys__com | [a-f0-9]{8}:[a-f0-9]{8}
snyk-api-token | snyk[_.-]?(?:key|token|api[_.-]?key|api[_.-]?token|oauth[_.-]?key|oauth[_.-]?token) | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
sonar-api-token | sonar[_.-]?(?:login|token) | (?:squ_|sqp_|sqa_)?[a-z0-9=_\-]{40}
sourcegraph-access-token | sourcegraph | [a-fA-F0-9]{40} | 3
squarespace-access-token | squarespace | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
sumologic-access-id | sumo | su[a-zA-Z0-9]{12} | 3
sumologic-access-token | sumo | [a-z0-9]{64} | 3
telegram-bot-api-token | telegr | [0-9]{5,16}:(?-i:A)[a-z0-9_\-]{34}
travisci-access-token | travis | [a-z0-9]{22}
twitch-api-token | twitch | [a-z0-9]{30}
twitter-access-secret | twitter | [a-z0-9]{45}
twitter-access-token | twitter | [0-9]{15,25}-[a-zA-Z0-9]{20,40}
twitter-api-key | twitter | [a-z0-9]{25}
twitter-api-secret | twitter | [a-z0-9]{50}
twitter-bearer-token | twitter | A{22}[a-zA-Z0-9%]{80,100}
typeform-api-token | typeform | tfp_[a-z0-9\-_\.=]{59}
yandex-access-token | yandex | t1\.[A-Z0-9a-z_-]{1,200}[=]{0,2}\.[A-Z0-9a-z_-]{86}[=]{0,2}
yandex-api-key | yandex | AQVN[A-Za-z0-9_\-]{35,38}
yandex-aws-access-token | yandex | YC[a-zA-Z0-9_\-]{38}
zendesk-secret-key | zendesk | [a-z0-9]{40}
"""
"""name | the service, named in the key before the value | shape of the whole value | least entropy."""
