"""Tokens of vendors as their documentation shows them, written down apart from the table in the code.

In a form `{A36}` is 36 of A-Z a-z 0-9, `{W..}` also `_` and `-`, `{B..}` base64, `{H..}` hex, `{L..}`
lower case and digits, `{U..}` upper case and digits, `{D..}` digits, `{Z..}` letters, `{T..}` base32 in
lower case, `{G}` a UUID.
"""

import random
import re
import string
import uuid
from typing import Final

ALPHABETS: Final = {
    "A": string.ascii_letters + string.digits,
    "W": string.ascii_letters + string.digits + "_-",
    "B": string.ascii_letters + string.digits + "+/",
    "H": "0123456789abcdef",
    "L": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "D": string.digits,
    "Z": string.ascii_letters,
    "T": string.ascii_lowercase + "234567",
}

# By vendor, the forms of its tokens that can be recognised bare.
RECOGNISABLE: Final = {
    "1Password": ["ops_eyJ{B250}", "A3-{U6}-{U11}-{U5}-{U5}-{U5}"],
    "Adafruit": ["aio_{Z4}{D2}{A22}"],
    "Adobe": ["p8e-{W32}"],
    "age": ["AGE-SECRET-KEY-1{U58}"],
    "Airtable": ["pat{A14}.{H64}"],
    "Aiven": ["AVNS_{W19}"],
    "Alibaba": ["LTAI{A20}"],
    "Amazon": ["AKIA{U16}", "ASIA{U16}", "{B40}"],
    "Anthropic": ["sk-ant-api03-{W93}AA", "sk-ant-admin01-{W93}AA"],
    "Apify": ["apify_api_{A36}"],
    "Asana": ["1/{D16}:{H32}", "2/{D16}/{D16}:{H32}"],
    "Atlassian": ["ATATT3xFfGF0{W172}={U8}"],
    "Azure": ["{W3}8Q~{W34}", "{A76}AZDO{A4}", "{B86}=="],
    "Bitbucket": ["ATBB{A32}"],
    "Brevo": ["xkeysib-{H64}-{A16}"],
    "Buildkite": ["bkua_{H40}"],
    "CircleCI": ["CCIPAT_{A22}_{H40}"],
    "Clojars": ["CLOJARS_{H60}"],
    "Cloudflare": ["cfut_{A40}{H8}", "v1.0-{H24}-{H146}", "{W40}"],
    "CockroachDB": ["CCDB1_{A22}_{A40}"],
    "Confluent": ["cflt{B60}"],
    "Contentful": ["CFPAT-{W43}", "{W43}"],
    "crates.io": ["cio{A32}"],
    "Databricks": ["dapi{H32}", "dapi{H32}-2"],
    "Deno": ["ddp_{A36}"],
    "DigitalOcean": ["dop_v1_{H64}", "doo_v1_{H64}"],
    "Discord": ["MT{A24}.G{A5}.{W38}", "https://discord.com/api/webhooks/{D19}/{W68}"],
    "Docker": ["dckr_pat_{W27}"],
    "Doppler": ["dp.pt.{A43}", "dp.st.dev.{A43}"],
    "Dropbox": ["sl.{W135}"],
    "Duffel": ["duffel_test_{W43}"],
    "Dynatrace": ["dt0c01.{U24}.{U64}"],
    "EasyPost": ["EZAK{A54}", "EZTK{A54}"],
    "ElevenLabs": ["sk_{H48}"],
    "Facebook": ["EAACEdEose0cBA{A150}"],
    "Figma": ["figd_{W40}"],
    "Firecrawl": ["fc-{H32}"],
    "Flutterwave": ["FLWSECK-{H32}-X", "FLWSECK_TEST-{H32}-X"],
    "Fly.io": ["fm2_{B120}"],
    "Frame.io": ["fio-u-{W64}"],
    "Ghost": ["{H24}:{H64}"],
    "GitHub": ["ghp_{A36}", "gho_{A36}", "ghs_{A36}", "github_pat_{A22}_{A59}"],
    "GitLab": ["glpat-{W20}", "gldt-{W20}", "glrt-{W20}", "glcbt-64_{W20}"],
    "Google": ["AIza{W35}", "GOCSPX-{W28}", "ya29.{W160}", "1//0{W100}"],
    "Grafana": ["glsa_{A32}_{H8}", "glc_eyJ{B100}", "eyJrIjoi{B84}"],
    "Groq": ["gsk_{A52}"],
    "Harness": ["pat.{A22}.{H24}.{A20}"],
    "Heroku": ["HRKU-AA{W58}"],
    "Hetzner": ["{A64}"],
    "HubSpot": ["pat-na1-{G}", "pat-eu1-{G}"],
    "Hugging Face": ["hf_{Z34}"],
    "Infracost": ["ico-{A32}"],
    "Intercom": ["dG9rO{B54}="],
    "JFrog": ["AKCp{A69}"],
    "LangSmith": ["lsv2_pt_{H32}_{H10}"],
    "LaunchDarkly": ["api-{G}", "sdk-{G}"],
    "Linear": ["lin_api_{A40}"],
    "Lob": ["test_{H35}", "live_{H35}"],
    "Mailchimp": ["{H32}-us12"],
    "Mailgun": ["key-{H32}", "{H32}-{H8}-{H8}"],
    "Mapbox": ["sk.eyJ1Ijoi{W60}.{W22}"],
    "MessageBird": ["{A25}"],
    "Neon": ["napi_{L64}"],
    "Netlify": ["nfp_{A36}"],
    "New Relic": ["NRAK-{U27}", "NRII-{W32}", "{H36}NRAL"],
    "Notion": ["ntn_{D11}{A35}", "secret_{A43}"],
    "npm": ["npm_{A36}"],
    "NuGet": ["oy2{L43}"],
    "NVIDIA": ["nvapi-{W64}"],
    "Octopus": ["API-{U32}"],
    "Okta": ["00{W40}"],
    "OpenAI": ["sk-proj-{W74}T3BlbkFJ{W74}", "sk-{A20}T3BlbkFJ{A20}"],
    "OpenRouter": ["sk-or-v1-{H64}"],
    "OpenShift": ["sha256~{W43}"],
    "Perplexity": ["pplx-{A48}"],
    "Pinecone": ["pcsk_{A5}_{A63}"],
    "Plaid": ["access-sandbox-{G}", "access-production-{G}"],
    "PlanetScale": ["pscale_tkn_{W43}"],
    "PostHog": ["phx_{A43}"],
    "Postman": ["PMAK-{H24}-{H34}"],
    "Prefect": ["pnu_{L36}"],
    "Pulumi": ["pul-{H40}"],
    "PyPI": ["pypi-AgEIcHlwaS5vcmc{W150}"],
    "Razorpay": ["rzp_live_{A14}"],
    "ReadMe": ["rdme_{L70}"],
    "Replicate": ["r8_{A37}"],
    "Resend": ["re_{A8}_{A24}"],
    "RubyGems": ["rubygems_{H48}"],
    "SendGrid": ["SG.{W22}.{W43}"],
    "Sentry": ["sntrys_eyJ{B150}", "sntryu_{H64}"],
    "Shippo": ["shippo_live_{H40}"],
    "Shopify": ["shpat_{H32}", "shpss_{H32}"],
    "Slack": ["xoxb-{D12}-{D13}-{A24}", "xapp-1-A{U10}-{D13}-{H64}"],
    "SonarQube": ["squ_{H40}"],
    "Sourcegraph": ["sgp_{H16}_{H40}"],
    "Square": ["sq0atp-{W22}", "EAAAl{W59}"],
    "Stripe": ["sk_live_{A24}", "rk_live_{A24}", "whsec_{A32}"],
    "Supabase": ["sbp_{H40}", "sb_secret_{W31}"],
    "Tailscale": ["tskey-auth-{A12}CNTRL-{A32}"],
    "Tavily": ["tvly-dev-{A32}"],
    "Telegram": ["{D10}:AA{W33}"],
    "Terraform": ["{A14}.atlasv1.{W67}"],
    "Trello": ["ATTA{H72}"],
    "Twilio": ["SK{H32}"],
    "Twitch": ["{L30}"],
    "Typeform": ["tfp_{W59}"],
    "Vault": ["hvs.{W90}", "hvb.{W140}"],
    "Vercel": ["vcp_{A56}"],
    "Vultr": ["{U36}"],
    "xAI": ["xai-{A80}"],
    "Yandex": ["AQVN{W36}", "y0_{W55}"],
}
RECORDED_AS_HEX: Final = ["{H32}", "{H40}", "{H64}", "{G}"]  # told from hashes by a name only


def make(form: str, chance: random.Random) -> str:
    def part(found: re.Match[str]) -> str:
        if found[1] == "G":
            return str(uuid.UUID(int=chance.getrandbits(128), version=4))
        return "".join(chance.choices(ALPHABETS[found[1]], k=int(found[2])))

    return re.sub(r"\{([A-Z])([0-9]*)\}", part, form)
